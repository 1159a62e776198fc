"""The progress of coalitions: what all heads and none are worth, an estimate of time and memory, then a bar."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from winnow.commands.console import messages
from winnow.commands.formats import written_bytes
from winnow.commands.pace import Clock, clock_time
from winnow.commands.progress import progress_bar
from winnow.estimate.cokv.estimator import Estimate
from winnow.estimate.cokv.run import ItemProgress
from winnow.estimate.cokv.screening import Screening

SHORT = 20.0
"""Seconds that need no estimate."""
_NAMED = 20
"""Examples that are listed by number, at most."""


class MemoryNeeds(NamedTuple):
    """The memory that prompts take, and what there is for them."""

    prompts: int
    """Bytes of all of them in a cache."""
    limit: int | None
    """Bytes that they may take in a worker; None for what is free."""

    def __str__(self) -> str:
        told = f"the prompts take {written_bytes(self.prompts)}"
        if self.limit is None or self.limit >= self.prompts:
            return f"{told} of memory"
        return f"{told}, of which {written_bytes(self.limit)} are kept in memory"


def tell_screening(screening: Screening, examples: int, keep_missed: bool) -> None:
    """Lines on examples that the whole cache misses, and on questions that need no more than the window."""
    missed = screening.missed
    if missed:
        fate = "evaluated all the same" if keep_missed else "left out (--keep-missed evaluates them)"
        _tell(f"{len(missed)} of {examples} examples are answered wrong with all heads and {fate}: {_numbers(missed)}.")
    if screening.indifferent:
        _tell(
            "No example is answered better with all heads than with the window alone, so coalitions may not differ: "
            "take a smaller --window, or questions about what is further back.",
            style="yellow",
        )


@contextmanager
def coalitions_watched(
    known: int, starting: int, needs: MemoryNeeds, may_stop: bool, clock: Clock = time.monotonic
) -> Iterator[ItemProgress]:
    """A bar, with an estimate of the time left as soon as the pace of all workers is known.

    known: batches that the journal has. starting: workers that load the model before their first batch. may_stop: the
    halves may agree early.
    """
    with progress_bar("Coalitions", None, starting=starting, clock=clock) as bar:
        bar.skip(known)

        def watch(done: int, total: int, found: Estimate | None) -> None:
            bar.set(done, total)
            if found is not None:
                bar.show(f"Coalitions, halves agree to {100 * found.overlap:.0f}%")
            left = bar.pace.left
            if done - known == starting + 1 and left is not None and left >= SHORT:
                most = " at most" if may_stop else ""
                _tell(f"Coalitions: {total - done:,} batches to go, about {clock_time(left)}{most}; {needs}.")

        yield watch


def _tell(text: str, style: str | None = None) -> None:
    messages().print(text, style=style, markup=False, soft_wrap=True)


def _numbers(examples: Sequence[int]) -> str:
    """Numbers from 1 on, as errors count examples: "3, 7, 8"."""
    named = ", ".join(str(example + 1) for example in examples[:_NAMED])
    return named if len(examples) <= _NAMED else f"{named} and {len(examples) - _NAMED} more"
