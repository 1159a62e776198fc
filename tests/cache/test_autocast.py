"""Autocast around a model that has its dtype already: tokens are chosen, and attended to, as without it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from support.dense_attention import CASES
from support.dense_attention import build as problem
from support.families import prompt
from support.ready import ready
from support.replay_oracle import ANSWER, FIRST, LATER
from support.small_caches import made
from winnow import CompressedCache
from winnow.cache.dense import dense_attention
from winnow.cache.paid import paid_attention
from winnow.cache.replay import replay
from winnow.cache.replay_words import ReplayWords
from winnow.kernels import prefill
from winnow.kernels.formats import DenseBlock
from winnow.kernels.interface import AttentionSpec
from winnow.kernels.latent import LatentAttention
from winnow.kernels.reference import ReferencePlan
from winnow.kernels.segments import TailSegments
from winnow.score import KVzip

pytestmark = pytest.mark.usefixtures("one_thread")
LENGTH = 160
WORDS = ReplayWords(*map(torch.tensor, (FIRST, LATER, ANSWER)))
METHODS = ["expectedattention", "triattention", "rkv", "h2o", "defensivekv", "snapkv+bits(4, round=queries)", "keydiff"]


@pytest.fixture(scope="module")
def model():
    return made().bfloat16()


def autocast(enabled: bool) -> torch.autocast:
    return torch.autocast("cpu", torch.bfloat16, enabled=enabled)


def kept(model, name: str, enabled: bool, **options: Any) -> list[list[int]]:
    """Positions that every head kept of a prompt and of what came after it; logits of the last token."""
    past = CompressedCache(model, ready(name, 24, shape=(3, 2)), **options)
    with torch.no_grad(), autocast(enabled):
        model(prompt(length=LENGTH), past_key_values=past)
        for seed in range(8):
            last = model(prompt(length=1, seed=seed), past_key_values=past).logits[0, -1]
    return [*(head.tolist() for layer in range(3) for head in past.kept(layer)), last.tolist()]


@pytest.mark.parametrize("name", METHODS)
def test_the_same_tokens_are_kept(model, name: str) -> None:
    assert kept(model, name, True) == kept(model, name, False)


@pytest.mark.parametrize("name", ["rkv", "h2o", "snapkv(window=2)"])
def test_the_same_tokens_are_folded(model, name: str) -> None:
    assert kept(model, name, True, fold_every=4) == kept(model, name, False, fold_every=4)


@pytest.fixture
def torch_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts are attended to by torch, as where the compiled kernels do not serve."""
    monkeypatch.setattr(prefill, "supports", lambda queries, keys: False)


@pytest.mark.usefixtures("torch_alone")
@pytest.mark.parametrize("plus", [False, True])
def test_a_second_reading_finds_the_same(model, plus: bool) -> None:
    ids, found = prompt(length=LENGTH), []
    for enabled in (False, True):
        past = CompressedCache(model, "full", defer=True, waiting_queries=8)
        with torch.no_grad(), autocast(enabled):
            model(ids, past_key_values=past)
            found.append(replay(past, ids, KVzip(chunk=40, normalize=plus), WORDS).scores[0])
    assert all(map(torch.equal, *found))


def both(function) -> tuple[Tensor, Tensor]:
    """Results of a function within autocast and without."""
    with torch.no_grad():
        with autocast(True):
            cast = function()
        return cast, function()


class Grouped(nn.Module):
    """A layer of two query heads per KV head."""

    num_key_value_groups = 2


def drawn() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(1, heads, 20, 16, generator=generator) for heads in (4, 2, 2))  # type: ignore[return-value]


def test_logits_that_are_formed_one_by_one() -> None:
    mask = torch.ones(1, 1, 20, 20, dtype=torch.bool).tril()
    spec = AttentionSpec(0.25, softcap=3.0)
    assert torch.equal(*both(lambda: dense_attention(Grouped(), *drawn(), mask, spec)))


@pytest.mark.usefixtures("torch_alone")
def test_what_a_prompt_was_paid_where_that_takes_a_pass_of_its_own() -> None:
    assert torch.equal(*both(lambda: paid_attention(Grouped(), *drawn(), None, AttentionSpec(0.25)).paid))


def test_the_reference() -> None:
    asked = problem(CASES["four"])
    assert torch.equal(*both(lambda: ReferencePlan(asked.prefixes, asked.tail, asked.spec).run(asked.query)))


def test_attention_over_latents() -> None:
    generator = torch.Generator().manual_seed(0)
    latents, rotated = torch.randn(30, 16, generator=generator), torch.randn(30, 8, generator=generator)
    block = DenseBlock(latents, rotated, torch.tensor([0, 30]))
    tail = TailSegments(latents[None, None, :5], rotated[None, None, :5], torch.tensor([5]))
    attention = LatentAttention([block], tail, AttentionSpec(0.2))
    asked = torch.randn(1, 4, 1, 16, generator=generator), torch.randn(1, 4, 1, 8, generator=generator)
    assert torch.equal(*both(lambda: attention.run(*asked)))
