"""Prefills shared by questions and methods: the same tokens kept, the same time counted."""

from __future__ import annotations

from itertools import count

import pytest
import torch

import winnow
from support.asked import encoded
from support.views import random_view
from winnow.evaluate import rankings
from winnow.evaluate.answering import read_with_question
from winnow.evaluate.prompts import common_start
from winnow.evaluate.rankings import RememberedRankings
from winnow.evaluate.shared import DenseReader
from winnow.score import H2O

METHODS = [
    "snapkv",
    "adakv",
    "ada-pyramidkv",
    "h2o",
    "tova",
    "streamingllm",
    "keydiff",
    "random",
    "kvec(window=4, wide_window=8)",
]

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("name", METHODS)
def test_a_shared_prefill_keeps_what_an_own_one_keeps(model, source, name):
    prompts = [encoded(source, index) for index in range(3)]
    methods = [winnow.method(name, budget) for budget in (16, 40)]
    dense = DenseReader(model, methods).read_start(prompts).dense(prompts[1])
    for method in methods:
        own = read_with_question(model, method, prompts[1])
        ours = dense.compress(method).cache
        torch.testing.assert_close(dense.logits, own.logits, atol=1e-4, rtol=1e-4)
        for layer in range(len(own.cache.layers)):
            for kept, expected in zip(ours.kept(layer), own.cache.kept(layer), strict=True):
                assert torch.equal(kept, expected)
        assert str(ours.method) == str(method)


def test_prompts_are_shared_up_to_the_question(model, source):
    prompts = [encoded(source, index) for index in range(2)]
    methods = [winnow.method("full")]
    shared = DenseReader(model, methods).read_start(prompts)
    assert shared.start == common_start(prompts) > 150
    assert DenseReader(model, methods).read_start(prompts[:1]).start == prompts[0].shape[1] - 1


def test_remembered_scoring_still_counts_as_time_spent(model, source):
    methods = [winnow.method("h2o", budget) for budget in (16, 32)]
    dense = DenseReader(model, methods).read(encoded(source))
    first, second = (dense.compress(method).seconds for method in methods)
    assert second > first / 4


def test_remembered_seconds_are_those_of_all_layers(monkeypatch):
    ticks = count()
    monkeypatch.setattr(rankings.time, "perf_counter", lambda: float(next(ticks)))
    rank = RememberedRankings()
    views = [random_view(layer=layer) for layer in range(3)]
    for view in [*views, *views]:
        rank(H2O(), view)
    assert rank.saved_seconds == 3


def test_the_shared_start_counts_for_every_prompt(model, source):
    shared = DenseReader(model, [winnow.method("full")]).read_start([encoded(source, index) for index in range(2)])
    shared._start.seconds = 1000.0
    for index in range(2):
        assert 1000 < shared.dense(encoded(source, index)).seconds < 2000
