"""The common part of allocators that follow head scores, in a model as well."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import winnow
from support.families import build, prompt
from support.head_scores import table
from support.ready import random_scores
from support.slots import slots_of
from winnow import HeadScores
from winnow.allocate import Ada, CoKV, HeadKV, SlotPlan
from winnow.errors import BudgetError, MethodError

MODEL = build("llama", num_hidden_layers=2)
MODEL.set_attn_implementation("winnow")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: HeadKV(table([[1, 2]], "cokv"), expects="headkv-r2"), "'cokv' scores, but 'headkv-r2'"),
    ],
)
def test_wrong_parameters_are_refused(make: object, message: str) -> None:
    with pytest.raises(MethodError, match=message):
        make()  # type: ignore[operator]


def test_a_table_of_another_shape_than_the_model_s_is_refused() -> None:
    with pytest.raises(MethodError):
        HeadKV(table([[1, 2], [3, 4]])).layer_totals(SlotPlan(60, (2, 2, 2), 50, 0))


def test_what_masked_and_streaming_heads_keep() -> None:
    scores = HeadScores(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), "duoattention")
    duo = winnow.method("duoattention(sinks=3, recent=5)", scores=scores)
    masking = winnow.method("snapkv+masking(count=1)", scores=scores)
    for method in (duo, masking):
        cache = winnow.CompressedCache(MODEL, method)
        with torch.no_grad():
            MODEL(prompt(length=40), past_key_values=cache)
        kept = [[head.tolist() for head in cache.kept(layer)] for layer in range(2)]
        if method is duo:
            assert kept == [[[0, 1, 2, 35, 36, 37, 38, 39]] * 2, [list(range(40))] * 2]
        else:
            assert kept == [[list(range(40))] * 2, [list(range(40)), list(range(32, 40))]]
        assert not method.full
        assert str(method) == method.name


@pytest.mark.parametrize("name", ["snapkv+masking", "duoattention", "streamingllm+duo", "snapkv+ada+masking"])
def test_their_own_rule_takes_no_budget(name: str) -> None:
    scores = random_scores((2, 2), "duoattention")
    assert winnow.method(name, scores=scores).budget.unit == "everything"
    with pytest.raises(BudgetError, match="takes no budget; drop budget=64"):
        winnow.method(name, 64, scores=scores)


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 80), st.integers(0, 2**31), st.data())
def test_slots_conserve(layers: int, heads: int, length: int, seed: int, data: st.DataObject) -> None:
    rng = np.random.default_rng(seed)
    values = np.round(rng.random((layers, heads)) ** data.draw(st.sampled_from([1, 12])), data.draw(st.integers(1, 9)))
    values.flat[0] += 1  # not all zeros, not all equal
    scores = HeadScores(torch.from_numpy(values), "x")
    count, guaranteed = layers * heads, data.draw(st.integers(0, length))
    plan = SlotPlan(data.draw(st.integers(count * guaranteed, count * length)), (heads,) * layers, length, guaranteed)
    makers = [lambda: HeadKV(scores, beta=data.draw(st.sampled_from([1, 1.005, 1.5, 10])))]
    if count > 1:
        makers.append(lambda: CoKV(scores, alpha=1))
    slots = torch.tensor(slots_of(data.draw(st.sampled_from(makers))(), plan))
    assert int(slots.sum()) == plan.slots
    assert (slots >= guaranteed).all()
    assert (slots <= length).all()
    # more important heads never get fewer
    order = torch.from_numpy(values).flatten().argsort(stable=True)
    assert (slots.flatten()[order].diff() >= -1).all()


def test_layer_totals_serve_other_head_allocators() -> None:
    scores = random_scores((2, 2))
    chosen = winnow.method("snapkv+ada+headkv", 20, scores=scores)
    assert chosen.allocator == Ada(across=HeadKV(scores))
    cache = winnow.CompressedCache(MODEL, chosen)
    with torch.no_grad():
        MODEL(prompt(length=60), past_key_values=cache)
    totals = HeadKV(scores).layer_totals(SlotPlan(80, (2, 2), 60, 8))
    assert [sum(layer) for layer in cache.stats().slots] == totals


@pytest.mark.parametrize("name", ["headkv-r", "headkv-er", "headkv-r2", "cokv"])
@pytest.mark.parametrize("budget", [8, 9, 20, 59, 60])
def test_in_a_model(name: str, budget: int) -> None:
    cache = winnow.CompressedCache(MODEL, winnow.method(name, budget, scores=random_scores((2, 2), name)))
    with torch.no_grad():
        MODEL(prompt(length=60), past_key_values=cache)
        logits = MODEL(torch.tensor([[5]]), past_key_values=cache).logits
    assert sum(map(sum, cache.stats().slots)) == 4 * budget
    assert torch.isfinite(logits).all()


def test_heads_may_keep_nothing() -> None:
    """A scorer without a window, and all slots for one head: the others live on new tokens alone."""
    scores = table([[0, 0], [0, 1]])
    cache = winnow.CompressedCache(MODEL, winnow.method("knorm+headkv", 10, scores=scores, beta=1))
    with torch.no_grad():
        MODEL(prompt(length=60), past_key_values=cache)
        logits = MODEL(torch.tensor([[5]]), past_key_values=cache).logits
    assert cache.stats().slots == [[0, 0], [0, 40]]
    assert torch.isfinite(logits).all()
