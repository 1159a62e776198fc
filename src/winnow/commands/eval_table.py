"""The table at the end of `winnow eval`."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from winnow.commands.formats import written_bytes, written_seconds, written_share
from winnow.commands.whole_table import print_whole
from winnow.runs.intervals import Estimate
from winnow.runs.measures import measures
from winnow.runs.summary import MethodSummary

_MOST_TASKS = 5
"""Tasks that have a column of their own."""


def print_table(console: Console, found: Sequence[MethodSummary]) -> None:
    """Scores with their 95 % intervals, bytes and times of every method."""
    print_whole(console, _table(found))
    scored = any("score" in each.scores for each in found)
    score = "score: mean of the tasks, 0 to 100, with its 95 % interval; " if scored else ""
    console.print(f"{score}decoding: time of a token, in a batch its share.", style="dim", markup=False, soft_wrap=True)


def as_records(found: Sequence[MethodSummary]) -> list[dict[str, object]]:
    """The same as plain JSON values."""
    return [{**vars(each), "scores": {name: score._asdict() for name, score in each.scores.items()}} for each in found]


def _table(found: Sequence[MethodSummary]) -> Table:
    kinds = list(dict.fromkeys(name for each in found for name in each.scores))
    tasks = list(dict.fromkeys(task for each in found for task in each.by_task))
    columns = tasks if 1 < len(tasks) <= _MOST_TASKS and kinds == ["score"] else []
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("method", overflow="fold")
    for name in [*map(_title, kinds), *columns, "n", "held", "of full", "compressing", "decoding"]:
        table.add_column(name, justify="right", no_wrap=True)
    for each in found:
        table.add_row(
            escape(each.method),
            *(_written(name, each.scores.get(name)) for name in kinds),
            *(f"{100 * each.by_task[task]:.1f}" if task in each.by_task else "–" for task in columns),
            f"{each.examples:,}",
            written_bytes(each.held_bytes),
            written_share(each.held_share, 1),
            _time(each.compress_seconds),
            "–" if each.step_seconds is None else _time(each.step_seconds),
        )
    return table


def _time(seconds: float) -> str:
    """Below 10 ms with a decimal: steps of a small model differ by less than a millisecond."""
    return f"{1000 * seconds:.1f} ms" if seconds < 0.00995 else written_seconds(seconds)


def _title(name: str) -> str:
    return {"nll": "perplexity"}.get(name, name)


def _written(name: str, score: Estimate | None) -> str:
    if score is None:
        return "–"
    if name == "nll":
        return f"{exp(score.mean):.3f}"
    if name == "score" or measures()[name].percent:
        interval = f" ({100 * score.low:.0f}–{100 * score.high:.0f})" if score.low < score.high else ""
        return f"{100 * score.mean:.1f}{interval}"
    return f"{score.mean:.4f}"
