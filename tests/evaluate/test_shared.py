"""Prefills shared by questions and methods: the same tokens kept, the same time counted."""

from __future__ import annotations

import pytest
import torch

import winnow
from support.asked import encoded
from winnow.evaluate.answering import read_with_question
from winnow.evaluate.prompts import common_start
from winnow.evaluate.shared import SharedPrefill

METHODS = ["snapkv", "adakv", "ada-pyramidkv", "h2o", "tova", "streamingllm", "keydiff", "random"]

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("name", METHODS)
def test_a_shared_prefill_keeps_what_an_own_one_keeps(model, source, name):
    prompts = [encoded(source, index) for index in range(3)]
    shared = SharedPrefill(model, prompts)
    dense = shared.dense(prompts[1])
    for budget in (16, 40):
        method = winnow.method(name, budget)
        own = read_with_question(model, method, prompts[1])
        ours = dense.compress(method).cache
        torch.testing.assert_close(dense.logits, own.logits, atol=1e-4, rtol=1e-4)
        for layer in range(len(own.cache.layers)):
            for kept, expected in zip(ours.kept(layer), own.cache.kept(layer), strict=True):
                assert torch.equal(kept, expected)
        assert str(ours.method) == str(method)


def test_prompts_are_shared_up_to_the_question(model, source):
    prompts = [encoded(source, index) for index in range(2)]
    shared = SharedPrefill(model, prompts)
    assert shared.start == common_start(prompts) > 150
    assert SharedPrefill(model, prompts[:1]).start == prompts[0].shape[1] - 1


def test_remembered_scoring_still_counts_as_time_spent(model, source):
    dense = SharedPrefill(model, [encoded(source)]).dense(encoded(source))
    first, second = (dense.compress(winnow.method("h2o", budget)).seconds for budget in (16, 32))
    assert second > first / 4
