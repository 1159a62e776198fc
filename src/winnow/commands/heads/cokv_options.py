"""Options of `winnow heads cokv` that are texts with a form of their own, read."""

from __future__ import annotations

import re

import typer

from winnow.commands.options.heads.cokv import MOST_SAMPLES, CokvOptions
from winnow.estimate.cokv.bound import samples_needed
from winnow.estimate.cokv.sampling import default_sizes
from winnow.estimate.cokv.settings import OVERLAP, StopRule


def read_sizes(text: str, players: int) -> tuple[int, ...]:
    """ "n/8, 3n/8, 100" -> (n // 8, 3n // 8, 100)"""
    if text.strip() == "eighths":
        return default_sizes(players)
    found = []
    for part in text.split(","):
        match = re.fullmatch(r"(?P<times>\d{0,9})n(/(?P<by>[1-9]\d{0,8}))?|(?P<size>\d{1,9})", part.strip())
        if not match:
            raise typer.BadParameter(f"{part!r} is not a coalition size: write 128, n/2 or 3n/8.", param_hint="--sizes")
        size = match["size"] or int(match["times"] or 1) * players // int(match["by"] or 1)
        found.append(int(size))
    return tuple(sorted(set(found)))


def stopping_rule(options: CokvOptions, sizes: int) -> StopRule:
    """So many samples, enough for an overlap, or for an error by Theorem 2, whichever of them was asked for.

    sizes: coalition sizes that scores are means over.
    """
    if not 0 < options.delta < 1:
        raise typer.BadParameter("must be between 0 and 1.", param_hint="--delta")
    if options.epsilon is not None:
        if options.samples is not None:
            raise typer.BadParameter(
                "it sets the number of samples, and so does --samples; give one of them.", param_hint="--epsilon"
            )
        return StopRule(samples_needed(sizes, options.epsilon, options.delta), options.overlap)
    if options.samples is None:
        return StopRule(MOST_SAMPLES, OVERLAP if options.overlap is None else options.overlap)
    return StopRule(options.samples, options.overlap)
