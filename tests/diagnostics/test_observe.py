"""Whole diagnoses of a model, measure by measure, against float64 forms written from their definitions."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

import winnow
from support.diagnosis_oracle import (
    dense_layers,
    oracle_channels,
    oracle_cosine,
    oracle_cosines,
    oracle_divergence,
    oracle_error,
    oracle_iou,
    oracle_mass,
    plain,
)
from support.families import build, prompt
from support.largest_tensor import LargestTensor
from support.oracle import full_layers
from support.ready import ready
from winnow.allocate import Uniform
from winnow.budget import Budget
from winnow.composition.method import Method
from winnow.errors import CacheError
from winnow.score import Critical, Scorer, SnapKV
from winnow.store import Dense

LENGTH = 60


def assert_as_defined(diagnosis, model, ids, method, window, queries, strength):
    """Compares everything with the oracle; what is kept comes from an ordinary compression."""
    length = ids.shape[1]
    context = winnow.compress(model, ids, method)
    layers = dense_layers(model, ids)
    assert len(diagnosis.layers) == len(layers)
    union: set[int] = set()
    for found, dense, index in zip(diagnosis.layers, layers, full_layers(model), strict=True):
        kept = plain(context.kept(index))
        assert plain(found.kept) == kept
        assert found.slots == [len(head) for head in kept]
        union |= set().union(*kept)
        assert found.rtd == pytest.approx(len(set().union(*kept)) / length)
        np.testing.assert_allclose(found.iou, oracle_iou(kept))
        np.testing.assert_allclose(found.mass, oracle_mass(dense, kept, queries), atol=1e-5)
        assert found.error == pytest.approx(oracle_error(dense, kept, queries), abs=2e-5)
        np.testing.assert_allclose(found.divergence, oracle_divergence(dense, window, strength), rtol=1e-3, atol=1e-13)
        variation, overlap = oracle_channels(dense, window)
        np.testing.assert_allclose(found.channel_cv, variation, rtol=1e-4)
        # A token's own channels may lie so close together that fp32 takes another.
        np.testing.assert_allclose(found.channel_overlap, overlap, atol=2.1 / dense["keys"].shape[-1] / length)
        last = dense["queries"][:, -window:]
        np.testing.assert_allclose(found.cosines, oracle_cosines(last), atol=1e-5)
        np.testing.assert_allclose(found.diversified_cosines, oracle_cosines(last, strength), atol=1e-5)
        if last.shape[1] == 1:
            assert found.cosine is None
            assert found.diversified_cosine is None
            continue
        assert found.cosine == pytest.approx(oracle_cosine(last), abs=1e-5)
        assert found.diversified_cosine == pytest.approx(oracle_cosine(last, strength), abs=1e-5)
    assert diagnosis.coverage == len(union)
    assert diagnosis.coverage_share == pytest.approx(len(union) / length)


def strength_of(method):
    """λ of SnapKV's scores, alone or under Critical; the paper's 0.45 for scorers that have none."""
    return {SnapKV(): 0.0, Critical(base=SnapKV()): 0.0}.get(method.scorer, 0.45)


METHODS = {
    "full": ("full", None),
    "snapkv": ("snapkv", 16),
    "streamingllm": ("streamingllm", 12),
    "kvec": ("kvec", 20),
    "aperturekv": ("aperturekv", 16),
    "adakv": ("adakv", 12),
    "h2o": ("h2o", 10),
    "criticalkv": ("criticalkv", 12),
    "expectedattention": ("expectedattention", 12),
    "tova": ("tova", 3),
    "heads without slots": ("knorm+ada(floor=0)", 2),
    "duoattention": ("duoattention(sinks=2,recent=4)", None),
}


@pytest.mark.parametrize("case", METHODS)
def test_every_measure_is_as_defined(llama, case):
    name, budget = METHODS[case]
    method = ready(name, budget, (2, 2))
    ids = prompt(length=LENGTH)
    found = winnow.diagnose(llama, ids, method, queries=9)
    assert_as_defined(found, llama, ids, method, window=8, queries=9, strength=strength_of(method))
    if case == "heads without slots":
        assert found.slot_range[0] == 0


@pytest.mark.parametrize("family", ["gpt_oss", "gemma2"])
def test_sinks_and_soft_capping(family):
    model = build(family)
    model.set_attn_implementation("winnow")
    if family == "gpt_oss":
        for name, parameter in model.named_parameters():
            if name.endswith("sinks"):
                parameter.data.normal_(1.0, 1.0, generator=torch.Generator().manual_seed(3))
    ids = prompt(length=40)
    for name, budget in (("snapkv", 12), ("knorm+ada(floor=0)", 2), ("full", None)):
        method = ready(name, budget, (2, 2))
        found = winnow.diagnose(model, ids, method, window=5, queries=12)
        assert_as_defined(found, model, ids, method, window=5, queries=12, strength=strength_of(method))


@pytest.mark.parametrize("length", [1, 2, 5, 9])
@pytest.mark.parametrize("name", ["snapkv", "kvec", "aperturekv", "streamingllm", "full"])
def test_short_prompts(llama, length, name):
    method = ready(name, None if name == "full" else 20)
    ids = prompt(length=length)
    found = winnow.diagnose(llama, ids, method)
    assert_as_defined(found, llama, ids, method, window=8, queries=64, strength=strength_of(method))
    assert found.coverage_share == found.mean_mass == found.rtd == found.iou == 1.0
    assert found.error == 0.0
    assert (found.cosine is None) == (length == 1)


def test_the_full_cache_loses_nothing(llama):
    found = winnow.diagnose(llama, prompt(length=LENGTH), winnow.method("full"))
    assert (found.coverage, found.coverage_share, found.rtd, found.iou) == (LENGTH, 1.0, 1.0, 1.0)
    assert (found.mean_mass, found.least_mass, found.error) == (1.0, 1.0, 0.0)


def test_diversification_is_the_methods_own(llama):
    ids = prompt(length=LENGTH)
    weak = winnow.method("snapkv", 16, diversify=0.1)
    found = winnow.diagnose(llama, ids, weak, queries=4)
    assert found.diversify == 0.1
    assert_as_defined(found, llama, ids, weak, window=8, queries=4, strength=0.1)
    for name, strength in (("criticalkv(diversify=0.2)", 0.2), ("aperturekv", 0.45), ("snapkv", 0.0), ("tova", 0.45)):
        assert winnow.diagnose(llama, ids, winnow.method(name, 16)).diversify == strength


@pytest.mark.parametrize(("window", "queries"), [(1, 1), (8, 1), (1, 8), (30, 20), (100, 100)])
def test_window_and_queries_may_be_more_or_less_than_the_method_sees(llama, window, queries):
    ids = prompt(length=LENGTH)
    method = winnow.method("tova", 5)
    found = winnow.diagnose(llama, ids, method, window=window, queries=queries)
    assert_as_defined(found, llama, ids, method, window=window, queries=queries, strength=strength_of(method))


@dataclass(frozen=True)
class CountsQueries(Scorer):
    """Notes how many queries it is shown."""

    shown: list = field(default_factory=list, hash=False)

    def queries_needed(self, length):
        return 3

    def __call__(self, view):
        self.shown.append(view.queries.shape[1])
        return view.keys.new_zeros(view.keys.shape[:2], dtype=torch.float32)


def test_a_scorer_is_shown_what_it_asks_for(llama):
    scorer = CountsQueries()
    winnow.diagnose(llama, prompt(), Method("counts", scorer, Uniform(), Dense(), Budget.parse(4)))
    assert scorer.shown == [3, 3]


def test_low_precision_is_measured_in_fp32(llama):
    model = build("llama", num_hidden_layers=2).bfloat16()
    model.set_attn_implementation("winnow")
    ids, method = prompt(length=LENGTH), winnow.method("snapkv", 16)
    found = winnow.diagnose(model, ids, method)
    assert all(layer.mass.dtype == torch.float64 for layer in found.layers)
    assert 0 < found.error < 1.5
    assert winnow.diagnose(model, ids, winnow.method("full")).error == 0.0


def test_one_dimensional_prompts(llama):
    ids, method = prompt(length=LENGTH), winnow.method("snapkv", 16)
    one, two = (winnow.diagnose(llama, each, method).as_dict() for each in (ids, ids[0]))
    assert one == two


def test_no_gradients_and_an_equal_method_are_left_behind(llama):
    method = winnow.method("kvec", 20)
    found = winnow.diagnose(llama, prompt(length=LENGTH), method)
    assert found.method is method
    assert not any(tensor.requires_grad for layer in found.layers for tensor in (*layer.kept, layer.iou, layer.mass))


@pytest.mark.parametrize("ids", [prompt(rows=2), prompt()[:, :0], prompt()[None], torch.tensor(3)])
def test_other_than_one_prompt_is_refused(llama, ids):
    with pytest.raises(CacheError, match="give one prompt"):
        winnow.diagnose(llama, ids, winnow.method("snapkv", 16))


@pytest.mark.parametrize("counts", [{"window": 0}, {"queries": -1}])
def test_no_queries_are_refused(llama, counts):
    with pytest.raises(CacheError, match="positive number of queries"):
        winnow.diagnose(llama, prompt(), winnow.method("snapkv", 16), **counts)


def test_another_attention_implementation_is_refused():
    with pytest.raises(CacheError, match="set_attn_implementation"):
        winnow.diagnose(build("llama", num_hidden_layers=1), prompt(), winnow.method("snapkv", 16))


def test_a_method_may_be_given_by_its_text(llama):
    made = winnow.method("kvec", 16)
    assert winnow.diagnose(llama, prompt(), str(made)).as_dict() == winnow.diagnose(llama, prompt(), made).as_dict()


def test_packing_shows_in_the_error(llama):
    errors = [winnow.diagnose(llama, prompt(), winnow.method(f"full+bits({bits})")).error for bits in (8, 4, 2)]
    assert 0 < errors[0] < errors[1] < errors[2]


def test_memory_of_a_diagnosis_is_linear_in_the_prompt(small_blocks):
    model = build("llama", num_hidden_layers=1, max_position_embeddings=1024)
    model.set_attn_implementation("winnow")
    largest = {}
    for length in (200, 800):
        with LargestTensor() as mode:
            winnow.diagnose(model, prompt(length=length), winnow.method("snapkv", 16), queries=length)
        largest[length] = mode.elements
    assert largest[800] < 4.4 * largest[200]
