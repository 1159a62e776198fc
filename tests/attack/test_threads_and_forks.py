"""Threads that decode with forks of one context, and processes that fork after the kernels ran.

Whatever runs beside it, a sequence must be bit by bit what it is alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from functools import cache
from random import Random
from threading import Barrier
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import winnow
from support.attack import seeds
from support.backends import EVICTIONS, STORES, folds
from support.families import VOCABULARY, build, prompt
from support.instruction_sets import needs_native
from support.launcher import COMMANDS, launcher
from support.ready import ready
from winnow import CompressedCache

FAMILIES = {"llama": (3, 2), "gemma2": (2, 2), "gemma3n_text": (2, 2), "gpt_oss": (2, 2)}
THREADS, STEPS, LENGTH = 4, 12, 60


@cache
def model_of(family: str) -> Any:
    made = build(family)
    made.set_attn_implementation("winnow")
    return made


class Work(NamedTuple):
    """A context and a sequence of tokens for every thread."""

    model: Any
    context: winnow.Context
    tokens: list[Tensor]


def work(rng: Random) -> Work:
    family = rng.choice(list(FAMILIES))
    method = ready("+".join(filter(None, (rng.choice(EVICTIONS), rng.choice(["", *STORES])))), 24, FAMILIES[family])
    every = rng.randint(1, 5) if rng.random() < 0.6 and folds(method, 5) else None
    rows = rng.choice([1, 2])
    model = model_of(family)
    context = winnow.compress(
        model, prompt(rows=rows, length=LENGTH, seed=rng.randrange(999)), method, fold_every=every
    )
    generator = torch.Generator().manual_seed(rng.randrange(1 << 30))
    return Work(
        model, context, [torch.randint(2, VOCABULARY, (rows, STEPS), generator=generator) for _ in range(THREADS)]
    )


def decoded(model: Any, past: CompressedCache, tokens: Tensor, sizes: Sequence[int]) -> Tensor:
    """Logits [R, T, V] of tokens [R, T], fed in chunks."""
    with torch.no_grad():
        return torch.cat([model(part, past_key_values=past).logits for part in tokens.split(list(sizes), dim=1)], dim=1)


@pytest.mark.parametrize("seed", seeds(3, 150))
def test_threads_with_forks_of_one_context(seed: int) -> None:
    """Forks are made while others decode, some of them from what another fork has decoded so far."""
    rng = Random(seed)
    found = work(rng)
    sizes = [1, 2, 1, 3, 1, 1, 3]
    before = torch.get_num_threads()
    torch.set_num_threads(2 if seed % 10 == 9 else 1)  # several threads of several threads are slow
    try:
        alone = [decoded(found.model, found.context.cache(), each, sizes) for each in found.tokens]
        start = Barrier(THREADS)

        def answer(tokens: Tensor) -> Tensor:
            start.wait()
            past = found.context.cache()
            first = decoded(found.model, past, tokens[:, :3], sizes[:2])
            fork = deepcopy(past)
            rest = decoded(found.model, fork, tokens[:, 3:], sizes[2:])
            assert torch.equal(decoded(found.model, past, tokens[:, 3:], sizes[2:]), rest)
            return torch.cat([first, rest], dim=1)

        with ThreadPoolExecutor(THREADS) as pool:
            together = list(pool.map(answer, found.tokens))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(one, other) for one, other in zip(alone, together, strict=True))


KERNELS = """
import os, sys
import torch
from winnow.kernels import AttentionSpec, DecodePlan, DenseBlock, TailSegments

torch.set_num_threads(1)  # torch's own threads do not survive a fork, and crash a child that ends
heads, dim, slots = 8, 64, 4000
keys, values = torch.randn(heads * slots, dim), torch.randn(heads * slots, dim)
block = DenseBlock(keys, values, torch.arange(heads + 1) * slots)
tail = TailSegments(torch.randn(1, heads, 8, dim), torch.randn(1, heads, 8, dim), torch.tensor([5]))
query = torch.randn(1, 2 * heads, 1, dim)
plan = DecodePlan([block], tail, AttentionSpec(dim**-0.5, None, None))
threads = lambda: len(os.listdir("/proc/self/task"))
alone = threads()
torch.set_num_threads(4)  # the kernels' as well
expected = plan.run(query).tolist()
workers = threads() - alone
assert workers > 0, "the pool did not start"

def right():
    return all(plan.run(query).tolist() == expected for _ in range(20)) and threads() - 1 == workers

def ended_well(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

child = os.fork()
if child == 0:
    assert threads() == 1
    good = right()
    grandchild = os.fork()
    if grandchild == 0:
        sys.exit(0 if right() else 3)
    sys.exit(0 if good and ended_well(grandchild) and plan.run(query).tolist() == expected else 3)
assert plan.run(query).tolist() == expected
assert ended_well(child)
assert plan.run(query).tolist() == expected
"""
"""Attention by several workers before and after forks, of a child too."""


@needs_native
def test_the_pool_survives_a_fork() -> None:
    done = launcher(COMMANDS).python(KERNELS)
    assert done.returncode == 0, done.stderr


MODEL = """
import os, sys
import torch
torch.set_num_threads(1)
import winnow
from support.families import prompt
from support.small_caches import GREEDY, compress, made

model = made()
model.generation_config.pad_token_id = 0
context = compress(model)
ids = torch.cat([context.input_ids, prompt(length=5, seed=9)], dim=1)
answer = lambda past: model.generate(ids, past_key_values=past, **GREEDY).tolist()
used = context.cache()
expected = answer(used)
children = []
for _ in range(3):
    child = os.fork()
    if child == 0:
        sys.exit(0 if answer(context.cache()) == expected else 3)
    children.append(child)
assert answer(context.cache()) == expected
assert all(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0 for child in children)
"""


def test_children_answer_from_the_context_of_their_parent() -> None:
    done = launcher(COMMANDS).python(MODEL)
    assert done.returncode == 0, done.stderr
