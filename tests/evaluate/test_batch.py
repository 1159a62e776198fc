"""Batches of rows, and caches that cannot be joined."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import winnow
from support.families import build, prompt
from support.small_caches import made
from winnow.evaluate.answering import read_with_question
from winnow.evaluate.batch import AnswerStart, decode_batch
from winnow.evaluate.decoding import decode, prefill
from winnow.evaluate.open_rows import OpenRows
from winnow.evaluate.shared import DenseReader

pytestmark = pytest.mark.usefixtures("one_thread")
WORDS = ("red", "old", "slow", "blue", "green")


def test_models_with_sliding_layers_are_read_as_others():
    model = build("gemma2")
    model.set_attn_implementation("winnow")
    ids = prompt(length=60)
    method = winnow.method("adakv", 12, window=4)
    own = read_with_question(model, method, ids)
    dense = DenseReader(model, [method]).read(ids)
    ours = dense.compress(method).cache
    assert ours.may_be_joined()
    expected = list(decode(model, own.cache, own.logits, 8, frozenset()))
    assert decode_batch(model, [AnswerStart(ours, dense.logits)], 8, frozenset())[0].tokens == expected


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "gpt_oss", "qwen3_next", "lfm2", "falcon_h1"])
def test_rows_of_several_lengths_decode_what_generate_does(family: str):
    """The bundled model's short answers hardly depend on positions; those of random weights do."""
    model = made(family)
    prompts = [prompt(length=length, seed=length) for length in (20, 31)]
    caches = [winnow.CompressedCache(model, "full") for _ in prompts]
    rows = [AnswerStart(cache, prefill(model, ids, cache)) for ids, cache in zip(prompts, caches, strict=True)]
    for ids, decoded in zip(prompts, decode_batch(model, rows, 24, frozenset()), strict=True):
        expected = model.generate(ids, max_new_tokens=24, do_sample=False, eos_token_id=-1, pad_token_id=0)
        assert decoded.tokens == expected[0, ids.shape[1] :].tolist()


def test_rows_that_ended_leave_the_batch(model, tokenizer):
    ids = [tokenizer(f"The {word} boat sails along the coast. " * 6, return_tensors="pt").input_ids for word in WORDS]
    method = winnow.method("adakv @ 12")
    dense = [DenseReader(model, [method]).read(prompt) for prompt in ids]

    def rows() -> list[AnswerStart]:
        return [AnswerStart(each.compress(method).cache, each.logits) for each in dense]

    free = [decode_batch(model, [row], 12, frozenset())[0].tokens for row in rows()]
    # Stop tokens that end rows at different steps.
    stops = frozenset({free[0][1], free[1][3]})
    alone = [decode_batch(model, [row], 12, stops)[0] for row in rows()]
    beside = decode_batch(model, rows(), 12, stops)
    assert [each.tokens for each in beside] == [each.tokens for each in alone]
    assert len({each.steps for each in beside}) > 1
    assert all(found.steps >= own.steps for found, own in zip(beside, alone, strict=True))
    assert all(each.seconds > 0 for each in beside)


@given(st.lists(st.integers(1, 12), min_size=1, max_size=12))
def test_a_batch_halves_when_half_of_it_ended(ends: list[int]):
    rows, sizes, kept = OpenRows(len(ends)), [], []
    cache: Any = SimpleNamespace(reorder_cache=kept.append)
    numbers = torch.arange(len(ends))
    for step in range(1, 13):
        rows.open -= {row for row in rows.there if ends[row] == step}
        kept.clear()
        left = numbers
        (numbers,) = rows.without_ended(cache, left)
        assert numbers.tolist() == rows.there
        assert torch.equal(left[kept[0]] if kept else left, numbers)
        if kept:
            assert rows.there == sorted(rows.open)
        assert rows.open <= set(rows.there)
        assert not rows.there or 2 * len(rows.open) > len(rows.there)
        sizes.append(len(rows.there))
    assert sizes == sorted(sizes, reverse=True)
    assert not rows.open
