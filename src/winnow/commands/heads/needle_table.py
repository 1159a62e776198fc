"""Words on needle scores: what was done, how many runs count, and how far two halves of them agree."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from torch import Tensor

from winnow.commands.console import output
from winnow.estimate.needle.run import Outcome
from winnow.estimate.split_half import SplitHalf
from winnow.heads import HeadScores


def agreement_of(halves: tuple[Tensor, Tensor] | None, table: HeadScores) -> SplitHalf | None:
    """Rank correlation of two halves of the runs, with the heads of the table; None where there are no halves."""
    if halves is None:
        return None
    one, other = (half.unflatten(1, (table.shape[1], -1)).mean(dim=2) for half in halves)
    return SplitHalf.of(one, other)


def told_right(outcomes: Sequence[Outcome]) -> str:
    """ "6 of 10 runs answered right" """
    return f"{_right(outcomes)} of {len(outcomes)} runs answered right"


def what_was_done(examples: int, lengths: Sequence[int], depths: int, runs: int) -> str:
    """Notes for a table."""
    return (
        f"raw means, not normalized; {examples} examples x lengths {', '.join(map(str, lengths))} x {depths} depths "
        f"= {runs} runs, of which the right ones count"
    )


def report(
    scores: HeadScores, lengths: Sequence[int], outcomes: Sequence[Outcome], agreement: SplitHalf | None
) -> None:
    """Prints right answers by length, and the agreement of the halves; the names of files come after it."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("tokens", "runs", "answered right"):
        table.add_column(column, justify="right")
    for length in lengths:
        ran = [outcome for outcome in outcomes if outcome.cell.length == length]
        table.add_row(f"{length:,}", str(len(ran)), str(_right(ran)))
    console = output()
    console.print(table)
    halves = "there are no two prompts to compare" if agreement is None else f"halves of them agree: {agreement}"
    counted = f"{scores.method}: {_right(outcomes)} of {len(outcomes)} runs count; {halves}. Written:"
    console.print(f"\n{counted}", soft_wrap=True)


def _right(outcomes: Sequence[Outcome]) -> int:
    return sum(outcome.scores is not None for outcome in outcomes)
