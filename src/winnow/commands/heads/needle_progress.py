"""The progress of needle runs: an estimate once a prompt is timed, then a bar by tokens."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from winnow.commands.console import messages
from winnow.commands.pace import Clock, clock_time
from winnow.commands.progress import Bar, progress_bar
from winnow.estimate.needle.effort import Effort
from winnow.estimate.needle.plan import NeedlePlan, Place
from winnow.estimate.needle.run import Outcome

SHORT = 20.0
"""Seconds that need no estimate."""


class NeedleWatch:
    """Shows how far the runs of a plan are."""

    def __init__(self, bar: Bar, heading: str, places: Sequence[Place], effort: Effort) -> None:
        self._bar = bar
        self._heading = heading
        self._places = places
        self._effort = effort
        self._told = False

    def prompt(self, place: Place, known: bool) -> None:
        """A prompt is done; known: the journal had it."""
        (self._bar.skip if known else self._bar.advance)(place.tokens, self._effort(place.tokens))
        if not self._told and self._bar.pace.left is not None:
            self._told = True
            self._estimate(self._bar.pace.left)

    def runs(self, outcomes: Sequence[Outcome]) -> None:
        """So many runs are done."""
        right = sum(outcome.scores is not None for outcome in outcomes)
        self._bar.show(f"Needles, {right} of {len(outcomes)} right")

    def _estimate(self, left: float) -> None:
        if left >= SHORT:
            tokens = [place.tokens for place in self._places]
            messages().print(
                f"{self._heading}: {len(tokens)} prompts of {min(tokens):,} to {max(tokens):,} tokens, "
                f"{sum(tokens):,} in all; about {clock_time(left)} left.",
                markup=False,
                soft_wrap=True,
            )


@contextmanager
def watching(
    plan: NeedlePlan, places: Sequence[Place], effort: Effort, starting: int = 0, clock: Clock = time.monotonic
) -> Iterator[NeedleWatch]:
    """A bar of the tokens of some of the plan's places; the time left goes by the effort of each prompt.

    starting: workers that load the model before their first prompt.
    """
    with prompts_bar(_heading(plan), places, effort, starting, clock) as bar:
        yield NeedleWatch(bar, _heading(plan), places, effort)


@contextmanager
def prompts_bar(
    text: str, places: Sequence[Place], effort: Effort, starting: int = 0, clock: Clock = time.monotonic
) -> Iterator[Bar]:
    """A bar of the tokens of some prompts. starting: workers that load the model before their first prompt."""
    tokens = [place.tokens for place in places]
    work = sum(map(effort, tokens))
    with progress_bar(text, sum(tokens), unit="tokens", work=work, starting=starting, clock=clock) as bar:
        yield bar


def _heading(plan: NeedlePlan) -> str:
    return f"Needles ({plan.settings.kind})"
