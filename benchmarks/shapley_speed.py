"""Cost of coalitions: the model run again for each, or one shared prefill and many rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from end_to_end import VOCABULARY, Shape
from reporting import markdown_table
from winnow import CompressedCache, method
from winnow.evaluate.batch import next_tokens
from winnow.evaluate.decoding import decode, prefill

PROMPT, NEW, WINDOW = 2048, 16, 8


class Speed(NamedTuple):
    """Seconds for one prompt."""

    shape: str
    prefill: float
    rerun: float
    """Per coalition: the model from the first token on."""
    alone: float
    """Per coalition, decoded alone over the shared prefill."""
    batches: dict[int, float]
    """Coalitions decoded side by side -> seconds per coalition, without the prefill."""


def measure_speed(shape: Shape, sizes: Sequence[int], reruns: int = 3) -> Speed:
    """All ways of answering with coalitions, on one prompt of random tokens."""
    model = shape.build()
    model.set_attn_implementation("winnow")
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, VOCABULARY, (1, PROMPT), generator=generator)
    masks = torch.rand(max(sizes), shape.layers, shape.kv_heads, generator=generator) < 0.5
    filled(model, ids)
    (cache, logits), seconds = timed(lambda: filled(model, ids))
    alone = [timed(partial(decode_alone, model, cache, logits, mask))[1] for mask in masks[:reruns]]
    again = [timed(partial(run_again, model, ids, mask))[1] for mask in masks[:reruns]]
    batches = {size: timed(partial(decode_together, model, cache, logits, masks[:size]))[1] for size in sizes}
    return Speed(
        shape.name, seconds, min(again), min(alone), {size: seconds / size for size, seconds in batches.items()}
    )


def filled(model: PreTrainedModel, ids: Tensor) -> tuple[CompressedCache, Tensor]:
    """A full cache and the logits of the last token."""
    cache = CompressedCache(model, method("full"))
    return cache, prefill(model, ids, cache)


def run_again(model: PreTrainedModel, ids: Tensor, mask: Tensor) -> None:
    """One coalition [L, H], from the first token on."""
    decode_alone(model, *filled(model, ids), mask)


def decode_alone(model: PreTrainedModel, cache: CompressedCache, logits: Tensor, mask: Tensor) -> None:
    """One coalition [L, H]."""
    list(decode(model, cache.coalitions(mask[None], WINDOW), logits, NEW, frozenset()))


def decode_together(model: PreTrainedModel, cache: CompressedCache, logits: Tensor, masks: Tensor) -> None:
    """Coalitions [C, L, H] as rows."""
    rows = cache.coalitions(masks, WINDOW)
    tokens = logits[None].argmax(-1).expand(len(masks))
    for step in range(NEW - 1):
        tokens = next_tokens(model, rows, tokens, torch.full((len(masks), 1), PROMPT + step))


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    """A result and the seconds it took."""
    begin = time.perf_counter()
    result = work()
    return result, time.perf_counter() - begin


def speed_table(speeds: Sequence[Speed], coalitions: int) -> str:
    """Speed-ups over running the model again, the prefill shared among so many coalitions."""
    body = []
    for speed in speeds:
        body.append([speed.shape, "model run again", f"{1000 * speed.rerun:.1f}", "1x"])
        ways = {"shared prefill, one by one": speed.alone}
        ways |= {f"shared prefill, {size} side by side": each for size, each in speed.batches.items()}
        for name, seconds in ways.items():
            each = seconds + speed.prefill / coalitions
            body.append(["", name, f"{1000 * each:.1f}", f"{speed.rerun / each:.0f}x"])
    return markdown_table(["shape", "how", "ms per coalition", "speed-up"], body)
