"""The study in tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from answers import Tally
from kept import Kept
from reporting import markdown_table
from winnow.estimate.tune.intervals import wilson
from winnow.tasks import QUESTION_KINDS


class Cell(NamedTuple):
    """A method at a budget."""

    answers: Tally
    kept: Kept


Rows = Mapping[str, Sequence[Cell]]


def accuracy_table(rows: Rows, columns: Sequence[str]) -> str:
    """Accuracy over all questions with its interval, a row per method, a column per budget."""
    return _table("method", rows, columns, lambda cell: _of_all(cell.answers))


def task_table(rows: Rows, columns: Sequence[str], kind: str) -> str:
    """Accuracy in one task."""
    return _table(kind, rows, columns, lambda cell: _with_interval(cell.answers.right[kind], cell.answers.asked[kind]))


def kept_table(rows: Rows, columns: Sequence[str]) -> str:
    """Coverage, overlap, facts."""
    return _table("method", rows, columns, lambda cell: _kept(cell.kept))


def halves_table(rows: Rows, columns: Sequence[str]) -> str:
    """Accuracy of methods and of their halves, with what they keep."""
    return _table("method", rows, columns, lambda cell: f"**{_percent(cell.answers.accuracy)}** · {_kept(cell.kept)}")


def layers_table(rows: Mapping[str, Sequence[float]]) -> str:
    """A share per layer."""
    layers = len(next(iter(rows.values())))
    head = ["method", *(f"layer {layer}" for layer in range(layers))]
    return markdown_table(head, [[name, *map(_percent, row)] for name, row in rows.items()])


def unbudgeted_table(rows: Mapping[str, Cell]) -> str:
    """Methods that set their own total."""
    head = ["method", "mean slots", "all", *QUESTION_KINDS, "coverage"]
    body = [
        [
            name,
            f"{fmean(answers.slots):.0f}",
            _of_all(answers),
            *(_percent(answers.accuracy_in(kind)) for kind in QUESTION_KINDS),
            _percent(kept.coverage),
        ]
        for name, (answers, kept) in rows.items()
    ]
    return markdown_table(head, body)


def _table(corner: str, rows: Rows, columns: Sequence[str], written: Callable[[Cell], str]) -> str:
    return markdown_table([corner, *columns], [[name, *map(written, row)] for name, row in rows.items()])


def _of_all(tally: Tally) -> str:
    return _with_interval(sum(tally.right.values()), tally.questions)


def _with_interval(right: int, asked: int) -> str:
    low, high = wilson(right / asked, asked)
    return f"{100 * right / asked:.1f} % ({100 * low:.0f}-{100 * high:.0f})"


def _kept(kept: Kept) -> str:
    return f"{_percent(kept.coverage)} · {kept.iou:.2f} · {_percent(kept.facts)}"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
