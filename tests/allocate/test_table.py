"""Allocators that follow head scores: HeadKV (Eq. 4), CoKV (Eq. 5), masking, DuoAttention."""

from __future__ import annotations

import json
import pickle
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import winnow
from support.families import build, prompt
from support.ready import random_scores
from winnow import HeadScores
from winnow.allocate import Ada, Allocation, CoKV, Duo, HeadKV, Masking, Plan, TableAllocator
from winnow.allocate.cokv import cokv_as_published, excess
from winnow.allocate.headkv import headkv_as_published
from winnow.bundled import HEADS_PATH, MODEL_PATH
from winnow.errors import BudgetError, MethodError
from winnow.models import load_model, open_model

SHARED = Path(__file__).parents[1].parent / "shared" / "data"
MODEL = build("llama", num_hidden_layers=2)
MODEL.set_attn_implementation("winnow")


def table(values: list[list[float]], method: str = "random") -> HeadScores:
    return HeadScores(torch.tensor(values, dtype=torch.float64), method)


def slots_of(allocator: TableAllocator, plan: Plan) -> list[list[int]]:
    """[L][H], through the interface that the cache uses."""
    totals = allocator.layer_totals(plan)
    per_layer = []
    for layer, heads in enumerate(plan.heads):
        scores = torch.zeros(heads, plan.length)
        slots = allocator.head_slots(scores, Allocation(plan, tuple(totals)), layer)
        assert slots.dtype == torch.int64
        assert int(slots.sum()) == totals[layer]
        per_layer.append(slots.tolist())
    return per_layer


# --- HeadKV --------------------------------------------------------------------------------------------------


def test_headkv_by_hand() -> None:
    # b = 20 - 4 = 16, β = 2: everyone keeps 4 + 8; the pool of 8·4 goes by 1/8, 1/8, 1/4, 1/2
    plan = Plan(80, (2, 2), 1000, 4)
    assert slots_of(HeadKV(table([[1, 1], [2, 4]]), beta=2), plan) == [[16, 16], [20, 28]]
    # β = 1: scores decide alone; a large β: nearly uniform
    assert slots_of(HeadKV(table([[0, 0], [0, 1]]), beta=1), plan) == [[4, 4], [4, 68]]
    assert slots_of(HeadKV(table([[1, 1], [2, 4]]), beta=1000), plan) == [[20, 20], [20, 20]]


def test_headkv_gives_what_does_not_fit_to_others_by_their_scores() -> None:
    plan = Plan(80, (2, 2), 30, 4)
    # without the limit [[4, 4], [25.3, 46.7]]; the 16.7 too many go to the only other head with a score
    slots = slots_of(HeadKV(table([[0, 0], [1, 2]]), beta=1), plan)
    assert slots[1] == [30, 30]
    assert sum(slots[0]) == 20
    plan = Plan(60, (2, 2), 30, 4)
    # without the limit 4 + [11, 11, 22, 0]; nothing is cut
    assert slots_of(HeadKV(table([[1, 1], [2, 0]]), beta=1), plan) == [[15, 15], [26, 4]]


@pytest.mark.parametrize("beta", [1.005, 1.2, 2, 10])
def test_headkv_equals_its_formula_where_nothing_is_cut(beta: float) -> None:
    rng = np.random.default_rng(0)
    values = rng.random((6, 4))
    plan = Plan(24 * 100 + 7, (4,) * 6, 10_000, 8)
    mean = plan.slots / 24 - 8
    expected = 8 + mean - mean / beta + values / values.sum() * mean / beta * 24
    slots = np.array(slots_of(HeadKV(HeadScores(torch.from_numpy(values), "x"), beta=beta), plan))
    assert slots.sum() == plan.slots
    assert (abs(slots - expected) < 1).all()


@pytest.mark.skipif(not SHARED.exists(), reason="published head scores are not here")
def test_headkv_published_table_of_llama_3() -> None:
    """One head gets 15,572 slots at 1,024 (8 of them the window's) and β = 1.005; at 2k tokens 43 % of all are lost."""
    path = SHARED / "headkv_scores" / "Meta-Llama-3-8B-Instruct_retrieval_reasoning_heads.json"
    values = torch.zeros(32, 32, dtype=torch.float64)
    for name, runs in json.loads(path.read_text()).items():
        layer, head = map(int, name.split("-"))
        values[layer, head] = np.mean(runs)
    published = headkv_as_published(values / values.sum(), 1016, 1.005)
    assert int(published.max()) == 15_572
    assert int(published[15, 30]) == 15_572
    paper = HeadKV(HeadScores(values, "headkv-r2"), beta=1.005, rounding="paper")
    held = sum(paper.layer_totals(Plan(1024 * 1024, (32,) * 32, 2000, 8)))
    assert 0.56 <= held / (1024 * 1024) < 0.57
    assert abs(sum(paper.layer_totals(Plan(1024 * 1024, (32,) * 32, 100_000, 8))) - 1024 * 1024) < 512
    exact = HeadKV(HeadScores(values, "headkv-r2"), beta=1.005)
    assert sum(exact.layer_totals(Plan(1024 * 1024, (32,) * 32, 2000, 8))) == 1024 * 1024


# --- CoKV ----------------------------------------------------------------------------------------------------


def test_cokv_by_hand() -> None:
    # the 2nd smallest is -1: e = 0, 0, 2, 6; outside the window there are 80 - 16 = 64
    scores = table([[-3, -1], [1, 5]])
    assert slots_of(CoKV(scores, alpha=2), Plan(80, (2, 2), 1000, 4)) == [[4, 4], [20, 52]]
    # at most 40: the others take what is over, by e
    assert slots_of(CoKV(scores, alpha=2), Plan(80, (2, 2), 40, 4)) == [[4, 4], [32, 40]]
    assert slots_of(CoKV(scores, alpha=3), Plan(20, (2, 2), 40, 4)) == [[4, 4], [4, 8]]


def test_cokv_is_min_max_normalisation() -> None:
    """Eq. 5 divides by max - t as well, which cancels."""
    values = torch.randn(5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for alpha in (1, 4, 10):
        ordered = values.flatten().sort().values
        normalised = ((values - ordered[alpha - 1]) / (ordered[-1] - ordered[alpha - 1])).clamp(min=0)
        torch.testing.assert_close(excess(HeadScores(values, "cokv"), alpha), normalised / normalised.sum())


def test_cokv_as_published_floors_and_drops() -> None:
    scores = HeadScores(torch.rand(4, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64), "cokv")
    shares = excess(scores, 3)
    assert torch.equal(cokv_as_published(shares, 25), torch.floor(25 * 16 * shares).long())
    paper = CoKV(scores, alpha=3, rounding="paper")
    plan = Plan(16 * 33, (4,) * 4, 1000, 8)
    assert 16 * 33 - 16 < sum(paper.layer_totals(plan)) < 16 * 33
    assert sum(CoKV(scores, alpha=3).layer_totals(plan)) == 16 * 33


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CoKV(table([[1, 2]]), alpha=2), "alpha must be below the number of heads, 2"),
        (lambda: CoKV(table([[1, 2]]), alpha=0), "alpha must be a whole number of at least 1"),
        (lambda: CoKV(table([[1, 1], [1, 1]])), "no head of .* is above its smallest 1"),
        (lambda: HeadKV(table([[1, 2]]), beta=0.9), "beta must be a number of at least 1"),
        (lambda: HeadKV(table([[1, 2]]), rounding="up"), "rounding must be one of"),
        (lambda: Masking(table([[1, 2]]), count=3), "count must be at most the number of heads, 2"),
        (lambda: Masking(table([[1, 2]]), which="first"), "which must be one of"),
        (lambda: Duo(table([[1, 2]]), retrieval=1.2), "retrieval must be a number between 0 and 1"),
        (lambda: HeadKV([[1, 2]]), "scores must be a file of head scores or a winnow.HeadScores"),
        (lambda: HeadKV(table([[1, 2]], "cokv"), expects="headkv-r2"), "'cokv' scores where 'headkv-r2'"),
    ],
)
def test_wrong_parameters_are_refused(make: object, message: str) -> None:
    with pytest.raises(MethodError, match=message):
        make()  # type: ignore[operator]


def test_negative_scores_have_no_shares() -> None:
    with pytest.raises(winnow.WinnowError, match="negative"):
        HeadKV(table([[-1, 2]])).layer_totals(Plan(40, (2,), 100, 4))


# --- masking and DuoAttention --------------------------------------------------------------------------------


def test_masking() -> None:
    scores = table([[1, 5], [3, 5]])
    plan = Plan(4 * 50, (2, 2), 50, 8)
    assert slots_of(Masking(scores, count=0), plan) == [[50, 50], [50, 50]]
    assert slots_of(Masking(scores, count=1), plan) == [[50, 8], [50, 50]]
    assert slots_of(Masking(scores, count=3), plan) == [[50, 8], [8, 8]]
    assert slots_of(Masking(scores, count=2, which="lowest"), plan) == [[8, 50], [8, 50]]
    assert slots_of(Masking(scores, count=4), plan) == [[8, 8], [8, 8]]


def test_duo() -> None:
    scores = table([[0.1, 0.9], [0.3, 0.2]])
    plan = Plan(4 * 50, (2, 2), 50, 12)
    assert slots_of(Duo(scores), plan) == [[12, 50], [50, 12]]
    assert slots_of(Duo(scores, retrieval=0.25), plan) == [[12, 50], [12, 12]]
    assert slots_of(Duo(scores, retrieval=0), plan) == [[12, 12], [12, 12]]


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


# --- all of them ---------------------------------------------------------------------------------------------


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 80), st.integers(0, 2**31), st.data())
def test_slots_conserve(layers: int, heads: int, length: int, seed: int, data: st.DataObject) -> None:
    rng = np.random.default_rng(seed)
    values = np.round(rng.random((layers, heads)) ** data.draw(st.sampled_from([1, 12])), data.draw(st.integers(1, 9)))
    values.flat[0] += 1  # not all zeros, not all equal
    scores = HeadScores(torch.from_numpy(values), "x")
    count, guaranteed = layers * heads, data.draw(st.integers(0, length))
    plan = Plan(data.draw(st.integers(count * guaranteed, count * length)), (heads,) * layers, length, guaranteed)
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
    totals = HeadKV(scores).layer_totals(Plan(80, (2, 2), 60, 8))
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


def test_scores_are_needed_and_must_fit() -> None:
    with pytest.raises(MethodError, match=r"HeadKV needs 'headkv-r2' head scores of this model: give scores=FILE"):
        winnow.CompressedCache(MODEL, winnow.method("headkv-r2", 64))
    with pytest.raises(MethodError, match="CoKV needs head scores"):
        winnow.CompressedCache(MODEL, winnow.method("snapkv+shapley", 64))
    wrong = winnow.method("cokv", 64, scores=random_scores((3, 2), "cokv"))
    with pytest.raises(MethodError, match="3 layers with 2 KV heads, the model 2 compressed layers with 2 KV heads"):
        winnow.CompressedCache(MODEL, wrong)
    per_query = HeadScores(torch.rand(2, 4) + 0.1, "headkv-r", heads="query")
    with pytest.raises(MethodError, match=r"average its groups with scores.grouped\(2\)"):
        winnow.CompressedCache(MODEL, winnow.method("headkv-r", 64, scores=per_query))
    winnow.CompressedCache(MODEL, winnow.method("headkv-r", 64, scores=per_query.grouped(2)))
    with pytest.raises(MethodError, match="HeadKV needs head scores"):
        winnow.CompressedCache(MODEL, winnow.method("snapkv+raba+headkv", 64))


def test_a_waiting_prompt_checks_each_method(tmp_path: Path) -> None:
    waiting = winnow.CompressedCache(MODEL, winnow.method("full"))
    waiting.activate_past_recording()
    with torch.no_grad():
        MODEL(prompt(length=30), past_key_values=waiting)
    with pytest.raises(MethodError, match="needs 'cokv' head scores"):
        waiting.compressed_by(winnow.method("cokv", 20))
    fork = waiting.compressed_by(winnow.method("cokv", 20, scores=random_scores((2, 2), "cokv")))
    assert sum(map(sum, fork.stats().slots)) == 80


def test_scores_that_are_shipped_with_a_model() -> None:
    source = open_model(MODEL_PATH)
    bundled = load_model(source, "cpu", "float32")
    ids = source.tokenizer("The favorite fruit of Alice is mango. " * 12, return_tensors="pt").input_ids
    for name in ("headkv-r", "headkv-er", "headkv-r2"):
        plain = winnow.method(name, 20)
        assert str(plain) == f"{name} @ 20"
        cache = winnow.CompressedCache(bundled, plain)
        with torch.no_grad():
            bundled(ids, past_key_values=cache)
        scores = HeadScores.load(HEADS_PATH / f"{name}.safetensors")
        plan = Plan(20 * 16, (4,) * 4, ids.shape[1], 8)
        assert [sum(layer) for layer in cache.stats().slots] == HeadKV(scores).layer_totals(plan)
        assert cache.method.allocator == HeadKV(scores, expects=name)


def test_scores_of_another_model_are_pointed_out() -> None:
    scores = HeadScores(torch.rand(2, 2) + 0.1, "cokv", model="meta-llama/Llama-3-8B")
    named = build("llama", num_hidden_layers=2)
    named.set_attn_implementation("winnow")
    named.config.name_or_path = "somewhere/Mistral-7B"
    with pytest.warns(UserWarning, match=r"those of meta-llama/Llama-3-8B, the model is somewhere/Mistral-7B"):
        winnow.CompressedCache(named, winnow.method("cokv", 64, scores=scores))
    named.config.name_or_path = "copies/llama-3-8b/"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        winnow.CompressedCache(named, winnow.method("cokv", 64, scores=scores))


def test_scores_from_a_file_are_part_of_the_name(tmp_path: Path) -> None:
    path = random_scores((2, 2), "cokv").save(tmp_path / "mine.safetensors")
    made = winnow.method("cokv", 64, scores=str(path), alpha=2)
    assert str(made) == f"cokv(scores={path}, alpha=2) @ 64"
    assert winnow.method(str(made)) == made
    assert hash(winnow.method(str(made))) == hash(made)
    assert pickle.loads(pickle.dumps(made)) == made
    with pytest.raises(winnow.WinnowError):
        winnow.method("cokv", 64, scores=str(tmp_path / "missing.safetensors"))
