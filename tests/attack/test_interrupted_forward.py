"""Forward passes that fail anywhere: the next call is refused, or goes on as if nothing had happened.

One case is a model, a method and a sequence of steps; one of the steps fails at a place by seed. A reference run that
never fails gives the logits, which must be equal bit by bit.
"""

from __future__ import annotations

import random
from contextlib import suppress
from copy import deepcopy
from functools import cache
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import winnow
from support.attack import seeds
from support.families import VOCABULARY, build
from support.interruptions import Halt, Places, halting
from winnow import CacheError, CompressedCache

pytestmark = pytest.mark.usefixtures("one_thread")

FAMILIES = ["llama", "gemma2", "gemma3n_text", "gpt_oss", "falcon_h1", "qwen3_next", "lfm2", "llama4_text", "gpt2"]
METHODS = ["adakv", "snapkv", "h2o", "tova", "streamingllm", "pyramidkv", "knorm", "snapkv+bits(8)", "adakv+spark(0.5)"]
FOLDABLE = ["adakv", "snapkv", "h2o", "tova", "streamingllm", "snapkv+bits(8)"]
LENGTH = 24


@cache
def model_of(family: str) -> Any:
    made = build(family)
    made.set_attn_implementation("winnow")
    return made


class Case(NamedTuple):
    """A cache and the steps that it takes."""

    model: Any
    cache: CompressedCache
    steps: list[dict[str, Tensor]]


def case(seed: int) -> Case:
    chosen = random.Random(seed)
    model = model_of(chosen.choice(FAMILIES))
    rows = chosen.choice([1, 1, 2, 3])
    every, turns = chosen.choice([(None, None), (1, None), (3, None), (None, 2), (6, 2)])
    names = FOLDABLE if every else [name for name in FOLDABLE if name != "h2o"] if turns else METHODS
    method = winnow.method(chosen.choice(names), budget=12)
    chunk = chosen.choice([LENGTH, LENGTH, 10])
    options = {} if chunk == LENGTH else {"prompt_length": LENGTH}
    made = CompressedCache(model, method, fold_every=every, fold_turns=turns, **options)
    if chosen.random() < 0.2 and made.is_croppable:
        made.activate_past_recording()
    sizes = [min(chunk, LENGTH - start) for start in range(0, LENGTH, chunk)]
    sizes += [chosen.choice([1, 1, 1, 4]) for _ in range(5)]
    return Case(model, made, inputs(sizes, rows, chosen))


def inputs(sizes: list[int], rows: int, chosen: random.Random) -> list[dict[str, Tensor]]:
    """Arguments of every step, with padding on one side of some rows, or none."""
    generator = torch.Generator().manual_seed(chosen.randrange(1 << 30))
    ids = torch.randint(2, VOCABULARY, (rows, sum(sizes)), generator=generator)
    if rows == 1 or chosen.random() < 0.4:
        return [{"input_ids": part} for part in ids.split(sizes, dim=1)]
    mask, left = torch.ones_like(ids), chosen.random() < 0.5
    for row in range(rows - 1):
        gone = chosen.randrange(1, LENGTH // 2)
        mask[row, :gone] = mask[row, :gone] * (not left)
        mask[row, LENGTH - gone : LENGTH] *= left
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    ends = torch.tensor(sizes).cumsum(0).tolist()
    return [
        {
            "input_ids": ids[:, end - size : end],
            "attention_mask": mask[:, :end],
            "position_ids": positions[:, end - size : end],
        }
        for size, end in zip(sizes, ends, strict=True)
    ]


def step(case: Case, index: int) -> Tensor:
    with torch.no_grad():
        logits: Tensor = case.model(**case.steps[index], past_key_values=case.cache, use_cache=True).logits
    return logits


def length(case: Case, steps: int) -> int:
    """Tokens of the first steps."""
    return sum(each["input_ids"].shape[1] for each in case.steps[:steps])


def places_of(case: Case, index: int, lines: bool) -> int:
    """Places of a step, taken with a fork."""
    twin, places = case._replace(cache=deepcopy(case.cache)), Places()
    with halting(case.model, places, lines):
        step(twin, index)
    return places.passed


def fails(case: Case, index: int, at: int, lines: bool, error: type[BaseException]) -> None:
    """A step up to a place; a cache may pass a few lines less than its fork did, and then the step does not fail."""
    with suppress(error), halting(case.model, Places(at, error), lines):
        step(case, index)


def taken_back(case: Case) -> bool:
    """True once the tokens of a step that failed are taken back; False where both that and going on are refused."""
    try:
        case.cache.take_back_unfinished()
    except CacheError:
        fork = case._replace(cache=deepcopy(case.cache))
        for refused in (case, fork):
            with pytest.raises(CacheError, match="start again"):
                step(refused, len(case.steps) - 1)
            with pytest.raises(CacheError, match="start again"):
                refused.cache.stats()
        return False
    return True


def goes_on(case: Case, failed: int, expected: list[Tensor]) -> None:
    """The rest of the steps, from the one that failed or from the one after it, as the cache says."""
    held = case.cache.get_seq_length()
    assert held in (length(case, failed), length(case, failed + 1))
    for index in range(failed + (held != length(case, failed)), len(case.steps)):
        assert torch.equal(step(case, index), expected[index]), f"step {index} after step {failed} failed"


@pytest.mark.parametrize("seed", seeds(20, 1500))
def test_a_step_that_fails(seed: int) -> None:
    chosen = random.Random(~seed)
    tried, reference = case(seed), case(seed)
    expected = [step(reference, index) for index in range(len(reference.steps))]
    failed, lines = chosen.randrange(len(tried.steps)), chosen.random() < 0.6
    for index in range(failed):
        step(tried, index)
    at = chosen.randrange(places_of(tried, failed, lines))
    fails(tried, failed, at, lines, chosen.choice([Halt, MemoryError, RuntimeError]))
    if chosen.random() < 0.2:
        tried = tried._replace(cache=deepcopy(tried.cache))
    if taken_back(tried):
        goes_on(tried, failed, expected)
        ends_alike(tried, reference)


def ends_alike(tried: Case, reference: Case) -> None:
    mine, other = tried.cache.stats(), reference.cache.stats()
    assert (mine.slots, mine.tail_tokens, mine.tokens_seen) == (other.slots, other.tail_tokens, other.tokens_seen)


# The 27th ends between two lines of taking back the last layer.
@pytest.mark.parametrize("seed", sorted({*seeds(10, 300), 26}))
def test_taking_back_that_fails(seed: int) -> None:
    chosen = random.Random(~seed)
    tried, reference = case(seed), case(seed)
    expected = [step(reference, index) for index in range(len(reference.steps))]
    failed = chosen.randrange(1, len(tried.steps))
    for index in range(failed):
        step(tried, index)
    fails(tried, failed, chosen.randrange(places_of(tried, failed, False)), False, Halt)
    twin, places = deepcopy(tried.cache), Places()
    try:
        with halting(tried.model, places, True):
            twin.take_back_unfinished()
    except CacheError:
        return
    if not places.passed:
        return
    with pytest.raises(Halt), halting(tried.model, Places(chosen.randrange(places.passed)), True):
        tried.cache.take_back_unfinished()
    assert taken_back(tried)
    goes_on(tried, failed, expected)
