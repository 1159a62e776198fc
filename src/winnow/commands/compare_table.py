"""The table of `winnow compare`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.markup import escape
from rich.table import Table

from winnow.commands.console import output
from winnow.commands.failures import readable
from winnow.commands.whole_table import print_whole
from winnow.runs.compare import Compared, Comparison, shown_arm
from winnow.runs.folder import Run
from winnow.runs.intervals import Bootstrap
from winnow.runs.measures import Measure

_STYLES = {"better": "green", "worse": "red", "not told apart": "dim"}
_MANY = 10
"""Comparisons from which on chance is told of."""


def show(runs: Sequence[Run], compared: Compared, bootstrap: Bootstrap) -> None:
    """Prints runs, comparisons and notes."""
    console = output()
    found = compared.comparisons
    for line in _headings(runs, found):
        console.print(readable(line), style="dim", markup=False, soft_wrap=True)
    print_whole(console, _table(runs, found, bootstrap))
    for note in [*_missing(runs, found), *compared.notes, *_explanation(found, bootstrap)]:
        console.print(readable(note), style="dim", markup=False, soft_wrap=True)


def _headings(runs: Sequence[Run], found: Sequence[Comparison]) -> list[str]:
    about = runs[0].about
    seen = {True: "yes", False: "no"}.get(about.protocol.get("question_seen", ""), "not said")
    models = dict.fromkeys(f"{run.about.model.name} ({run.about.model.kind})" for run in runs)
    baselines = dict.fromkeys((each.baseline.run.path, each.baseline.method) for each in found)
    against = baselines if len(baselines) == 1 else {(found[0].baseline.run.path, "the same method"): None}
    ((path, method),) = against
    place = "" if len(runs) == 1 else f" in {path}"
    return [
        f"{about.benchmark} · protocol: {about.protocol.get('name')} · question seen at compression: {seen}",
        f"{', '.join(models)} · compared with: {method}{place}",
    ]


def _table(runs: Sequence[Run], found: Sequence[Comparison], bootstrap: Bootstrap) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    several = len(runs) > 1
    for column in ["task", "method", *(["run"] if several else [])]:
        table.add_column(column, overflow="fold")
    for column in ("n", "score", "baseline", "difference", f"{100 * bootstrap.level:.4g} % interval", "p"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("told apart", no_wrap=True)
    ordered = sorted(found, key=lambda each: (len(each.tasks) > 1, each.tasks if len(each.tasks) == 1 else ()))
    for before, each in zip([None, *ordered], ordered, strict=False):
        name = _task(each)
        if before is not None and _task(before) != name:
            table.add_section()
        table.add_row(
            "" if before is not None and _task(before) == name else _plain(name),
            _plain(each.arm.method),
            *([_plain(str(each.arm.run.path))] if several else []),
            f"{each.examples:,}",
            _shown(each.score, each.measure),
            _shown(each.baseline_score, each.measure),
            _shown(each.difference.mean, each.measure, signed=True),
            f"{_shown(each.difference.low, each.measure, True)} … {_shown(each.difference.high, each.measure, True)}",
            f"{each.p:.4f}",
            each.verdict,
            style=_STYLES[each.verdict] if each.verdict != "not told apart" else None,
        )
    return table


def _plain(name: str) -> str:
    """A name of somebody's, which is no markup and does nothing to a terminal."""
    return escape(readable(name))


def _task(each: Comparison) -> str:
    if len(each.tasks) > 1:
        return f"mean of {len(each.tasks)} tasks"
    better = "" if each.measure.higher_is_better else ", lower is better"
    return f"{each.tasks[0]} ({each.measure.name}{better})"


def _shown(value: float, measure: Measure, signed: bool = False) -> str:
    """Shares as percent."""
    sign = "+" if signed else ""
    return f"{100 * value:{sign}.1f}" if measure.percent else f"{value:{sign}.4g}"


def _missing(runs: Sequence[Run], found: Sequence[Comparison]) -> list[str]:
    """A line for every side that lacks examples which the other has."""
    lacks: Counter[tuple[str, str]] = Counter()
    for each in found:
        if len(each.tasks) == 1:
            arm, baseline = shown_arm(each.arm, runs), shown_arm(each.baseline, runs)
            lacks[baseline, arm] += each.missing
            lacks[arm, baseline] += each.missing_in_baseline
    return [
        f"{count:,} examples of {one} have no result under {other}." for (one, other), count in lacks.items() if count
    ]


def _explanation(found: Sequence[Comparison], bootstrap: Bootstrap) -> list[str]:
    """The rule by which results are told apart."""
    chance = 1 - bootstrap.level
    lines = [
        f"Paired over the examples that both have; {bootstrap.resamples:,} resamples, seed {bootstrap.seed}. Told "
        f"apart: the interval is without 0, and p, of random signs, is {chance:.4g} at most."
    ]
    if len(found) >= _MANY:
        lines.append(f"Of {len(found)} comparisons of equals {chance * len(found):.1f} would be told apart by chance.")
    return lines
