"""Tables of what answers cost: memory and time of every method."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from winnow.commands.answer_groups import MethodAnswers, by_method
from winnow.commands.answers import AnswerResult
from winnow.commands.formats import (
    written_bytes,
    written_seconds,
    written_share,
    written_slots,
    written_speed,
)
from winnow.commands.whole_table import print_whole
from winnow.evaluate.process import peak_memory
from winnow.metrics import DEFAULT_METRIC

TELLING = 0.1
"""Part of what is held that tail and reserve must be for a table of their own."""

_PARTS = {
    "prefix_bytes": "compressed",
    "tail_bytes": "dense tail",
    "reserve_bytes": "reserve",
    "other_bytes": "other layers",
    "held_bytes": "cache held",
}

SHARED = (
    "prefill: the prompt was read once for all methods; each row is that time with the method's own compressing in it."
)


def print_costs(console: Console, results: Sequence[AnswerResult]) -> None:
    """Tables of what the answers of a command cost, and the peak of the whole process."""
    print_whole(console, costs_table(results))
    groups = by_method(results)
    if any(_outside_budget(group) >= TELLING for group in groups):
        console.print()
        print_whole(console, held_table(groups))
    notes = [SHARED] if any(result.prefill_shared for result in results) else []
    peak = peak_memory()
    if peak is not None:
        notes.append(
            f"peak process memory: {written_bytes(peak)}, with libraries, and with weights and activations that are "
            "not on another device."
        )
    if notes:
        console.print()
    for note in notes:
        console.print(note, style="dim", markup=False, soft_wrap=True)


def costs_table(results: Iterable[AnswerResult]) -> Table:
    """Memory and time of every method; means where it answered several questions."""
    groups = by_method(results)
    table = _table(*_worth_name(groups), "slots per head", "cache held", "of full", "prefill", "compressing", "decode")
    for group in groups:
        cells = [_worth(group)] if _worth_name(groups) else []
        table.add_row(escape(str(group.method)), *cells, *_costs(group))
    return table


def _worth_name(groups: Sequence[MethodAnswers]) -> list[str]:
    """The column of what the answers are worth; none where no right one is known."""
    if not any(group.known for group in groups):
        return []
    return ["right" if groups[0].metric == DEFAULT_METRIC else groups[0].metric]


def _worth(group: MethodAnswers) -> str:
    if group.metric == DEFAULT_METRIC or not group.known:
        return f"{group.right}/{group.known}"
    return f"{100 * group.score:.1f}"


def held_table(groups: Sequence[MethodAnswers]) -> Table:
    """The parts of what is held at the end of an answer; a budget is for the first of them."""
    shown = [part for part in _PARTS if part != "other_bytes" or any(_mean_bytes(group, part) for group in groups)]
    table = _table(*(_PARTS[part] for part in shown))
    for group in groups:
        table.add_row(escape(str(group.method)), *(written_bytes(_mean_bytes(group, part)) for part in shown))
    return table


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("method", overflow="fold")
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _outside_budget(group: MethodAnswers) -> float:
    """The part of what is held that came after the prompt, or is room for more."""
    return (_mean_bytes(group, "tail_bytes") + _mean_bytes(group, "reserve_bytes")) / _mean_bytes(group, "held_bytes")


def _mean_bytes(group: MethodAnswers, part: str) -> float:
    return group.mean(lambda answer: getattr(answer.stats, part))


def _costs(group: MethodAnswers) -> tuple[str, ...]:
    held, full = _mean_bytes(group, "held_bytes"), _mean_bytes(group, "full_bytes")
    prefill, compress = group.mean(lambda a: a.prefill_seconds), group.mean(lambda a: a.compress_seconds)
    one = group.answers[0].stats if len(group.answers) == 1 else None
    return (
        f"{group.mean_slots:,.0f}" if one is None else written_slots(one),
        written_bytes(held),
        written_share(held, full),
        written_seconds(prefill),
        written_share(compress, prefill),
        written_speed(group.decode_speed),
    )
