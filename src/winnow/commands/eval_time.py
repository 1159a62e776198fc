"""Time that a run of `winnow eval` will take, told before it begins: from a short look at the model's speed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from transformers import PreTrainedModel

from winnow.cache.compressed import CompressedCache
from winnow.commands.console import messages
from winnow.commands.eval_work import EvalWork
from winnow.commands.pace import clock_time
from winnow.estimate.executors.base import Item
from winnow.evaluate.decoding import clock, prefill
from winnow.runs.groups import Group
from winnow.runs.worker import RunRecipe
from winnow.tasks.example import LIKELIHOODS

LONG = 60.0
"""Seconds from which on a run is worth a line."""
_PROMPT, _STEPS = 128, 3
"""Tokens that are read, and then decoded, to see how fast a model is."""


class Speed(NamedTuple):
    """Seconds of a token."""

    read: float
    """In a prompt."""
    decoded: float
    """In an answer, one at a time."""


class Times(NamedTuple):
    """Seconds of a run."""

    reading: float
    answering: float
    """If all answers are as long as they may be, and a step of answers side by side takes as long as of one."""


def tell_time(work: EvalWork, recipe: RunRecipe, loaded: PreTrainedModel, items: Sequence[Item]) -> None:
    """A line on the time that items will take, where that is long."""
    speed = speed_of(loaded, work.source.context)
    times = times_of(work, recipe, items, speed)
    reading, answering = (each / work.options.crew_size for each in times)
    if reading + answering < LONG:
        return
    messages().print(
        f"Prompts take about {clock_time(reading)} to read, answers at most about {clock_time(answering)} "
        f"({1e3 * speed.decoded:,.0f} ms a step). Compression comes on top.",
        markup=False,
        soft_wrap=True,
    )


def times_of(work: EvalWork, recipe: RunRecipe, items: Sequence[Item], speed: Speed) -> Times:
    """Times of items at a speed; a group is read once, whatever the number of its items."""
    groups, longest = recipe.groups, work.longest
    tokens = longest.tokens / max(1, longest.characters)
    read = sum(_read(groups[place], tokens, work.most_prompt_tokens) for place in {item.example for item in items})
    steps = sum(_steps(groups[item.example], recipe.batch) for item in items)
    return Times(read * speed.read, steps * speed.decoded)


def speed_of(model: PreTrainedModel, context: int | None = None) -> Speed:
    """The speed of a model with a full cache; a shorter prompt first has everything there that is made once.

    context: tokens that the model can read, where it says.
    """
    _timed(model, 2)
    return _timed(model, _PROMPT if context is None else max(2, min(_PROMPT, context - _STEPS)))


def _timed(model: PreTrainedModel, tokens: int) -> Speed:
    cache = CompressedCache(model, "full")
    ids = torch.ones(1, tokens, dtype=torch.int64, device="cpu")
    start = clock(model)
    prefill(model, ids, cache)
    read = clock(model)
    for _ in range(_STEPS):
        prefill(model, ids[:, :1], cache)
    return Speed((read - start) / tokens, (clock(model) - read) / _STEPS)


def _read(group: Group, tokens: float, most: int | None) -> float:
    """Tokens that are read of a group. tokens: of a character; most: of each of its prompts."""
    whole = group.work * tokens
    return whole if most is None else min(whole, most * len(group.examples))


def _steps(group: Group, batch: int) -> int:
    """Steps in which a group's questions are answered under one method, or several side by side, at most."""
    most = 0 if group.judging.metric in LIKELIHOODS else group.judging.max_new_tokens
    return most * math.ceil(len(group.examples) / batch)
