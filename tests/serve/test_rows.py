"""Answers of models with sliding windows side by side: each says what it says alone, and leaves with its own cache."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from support.families import ZAYA, build, prompt
from winnow import CompressedCache
from winnow.kernels import native
from winnow.serve.rows import Batch, joins

pytestmark = [
    pytest.mark.usefixtures("one_thread", "several_at_once"),
    pytest.mark.skipif(native.library() is None, reason="the native library was not built"),
]
METHOD = "adakv(window=4) @ 12"


def read(model: PreTrainedModel, tokens: list[int]) -> CompressedCache:
    """A cache of one row after some tokens."""
    cache = CompressedCache(model, METHOD)
    with torch.no_grad():
        model(torch.tensor([tokens]), past_key_values=cache)
    return cache


def row(tokens: list[int]) -> Any:
    """As much of an answer as a batch looks at."""
    return SimpleNamespace(tokens=list(tokens), said=[], most=99, logits=torch.empty(0))


def said_alone(model: PreTrainedModel, cache: CompressedCache, token: int) -> Tensor:
    with torch.no_grad():
        logits: Tensor = model(torch.tensor([[token]]), past_key_values=cache).logits[0, -1]
    return logits


@pytest.mark.parametrize("family", ["gemma3_text", "gpt_oss", "llama", "qwen3_next", "lfm2", "falcon_h1"])
@pytest.mark.parametrize("candidates", [0, 5])
def test_answers_come_and_go(family: str, candidates: int) -> None:
    model = build(family)
    model.set_attn_implementation("winnow")
    prompts = [prompt(length=length, seed=length)[0].tolist() for length in (20, 5, 31)]
    prompts[0][:4] = [7, 9, 3, 10]  # tried behind 7 and 9 where the first row is alone, and taken back
    alone = [read(model, each) for each in prompts]
    rows = [row(each) for each in prompts]
    batch = Batch(rows[:1], read(model, prompts[0]), candidates)
    assert joins(batch.cache)

    def step(token: int) -> None:
        for each in batch.rows:
            each.tokens.append(token)
        batch.step(model)
        for each in batch.rows:
            expected = said_alone(model, alone[rows.index(each)], token)
            torch.testing.assert_close(each.logits, expected, rtol=0, atol=1e-5)

    for token in (6, 7, 9, 3, 8):
        step(token)
    for place in (1, 2):
        cache = read(model, prompts[place])
        assert batch.takes(cache)
        batch.add([rows[place]], cache)
        step(8 + place)
        step(3)
    batch.leave([rows[0]])
    for token in range(4, 12):
        step(token)
    kept = batch.cache_of(rows[1])
    batch.leave([rows[1]])
    step(13)
    # A conversation goes on from there, with several tokens at a time.
    more = prompt(length=4, seed=2)
    with torch.no_grad():
        found = [model(more, past_key_values=each).logits for each in (kept, alone[1])]
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-5)
    assert kept.get_seq_length() == alone[1].get_seq_length()


@pytest.mark.parametrize("family", ["llama", "qwen3_next", "lfm2", "falcon_h1"])
def test_a_row_that_ends_in_a_trial_has_its_right_tokens_read_without_gradients(family: str) -> None:
    model = build(family)
    model.set_attn_implementation("winnow")
    said = prompt(length=9, seed=3)[0].tolist() * 5
    alone, only = read(model, said), row(said)
    batch = Batch([only], read(model, said), 5)
    for token in (said[0], said[1], said[2]):  # the last one was read as a candidate, and others behind it
        only.tokens.append(token)
        batch.step(model)
        expected = said_alone(model, alone, token)
        torch.testing.assert_close(only.logits, expected, rtol=0, atol=1e-5)
    assert batch.cache.get_seq_length() > alone.get_seq_length()
    kept = batch.cache_of(only)
    assert kept.get_seq_length() == alone.get_seq_length()
    torch.testing.assert_close(said_alone(model, kept, 5), said_alone(model, alone, 5), rtol=0, atol=1e-5)


def test_windows_beside_linear_states_take_turns() -> None:
    model = build("zaya", **ZAYA)
    model.set_attn_implementation("winnow")
    assert not joins(read(model, prompt(length=20)[0].tolist()))
