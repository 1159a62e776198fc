"""Batches of rows, and caches that cannot be joined."""

from __future__ import annotations

import pytest

import winnow
from support.families import build, prompt
from winnow.evaluate.answering import read_with_question
from winnow.evaluate.batch import Row, can_be_joined, decode_batch
from winnow.evaluate.decoding import decode
from winnow.evaluate.shared import SharedPrefill

pytestmark = pytest.mark.usefixtures("one_thread")


def test_models_with_sliding_layers_are_evaluated_one_by_one():
    model = build("gemma2")
    model.set_attn_implementation("winnow")
    ids = prompt(length=60)
    method = winnow.method("adakv", 12, window=4)
    own = read_with_question(model, method, ids)
    dense = SharedPrefill(model, [ids]).dense(ids)
    ours = dense.compress(method).cache
    assert not can_be_joined(ours)
    expected = list(decode(model, own.cache, own.logits, 8, frozenset()))
    assert decode_batch(model, [Row(ours, dense.logits)], 8, frozenset())[0].tokens == expected
