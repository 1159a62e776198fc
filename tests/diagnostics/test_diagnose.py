"""Diagnostics against float64 forms written from their definitions, token by token and head by head."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

import winnow
from support.families import build, prompt
from support.oracle import explicit_attention, full_layers
from support.ready import ready
from support.views import random_view
from winnow.allocate import Uniform
from winnow.budget import Budget
from winnow.composition.method import Method
from winnow.diagnostics.attention import kept_attention
from winnow.diagnostics.kept import kept_mask, overlap, retained_diversity
from winnow.diagnostics.pairs import mean_over_pairs
from winnow.diagnostics.similarity import mean_cosine
from winnow.errors import CacheError
from winnow.score import Scorer
from winnow.select import Selection
from winnow.store import Dense

LENGTH = 60
_captured: dict[int, dict] = {}


# --- the oracle: dense layers of a model, and every measure from its definition ---------------------------------------


def capturing_attention(module, query, key, value, attention_mask, scaling, softcap=None, s_aux=None, **kwargs):
    """Plain attention that notes what every layer was given."""
    _captured[module.layer_idx] = {
        "queries": query[0].double().numpy(),
        "keys": key[0].double().numpy(),
        "values": value[0].double().numpy(),
        "scaling": scaling,
        "softcap": softcap,
        "sinks": None if s_aux is None else s_aux.double().numpy(),
    }
    return explicit_attention(module, query, key, value, attention_mask, scaling, softcap, s_aux, **kwargs)


AttentionInterface.register("test-capture", capturing_attention)
AttentionMaskInterface.register("test-capture", sdpa_mask)


def dense_layers(model, ids):
    """What the full-attention layers of the uncompressed model are given, in order."""
    _captured.clear()
    model.set_attn_implementation("test-capture")
    with torch.no_grad():
        model(input_ids=ids, use_cache=False)
    model.set_attn_implementation("winnow")
    return [_captured[index] for index in full_layers(model)]


def weights_of(layer, head, query, seen):
    """(unnormalised weights over the tokens `seen`, that of the sink) of one query of one query head."""
    group = len(layer["queries"]) // len(layer["keys"])
    logits = [float(layer["keys"][head // group][t] @ layer["queries"][head][query]) * layer["scaling"] for t in seen]
    if layer["softcap"] is not None:
        logits = [layer["softcap"] * math.tanh(logit / layer["softcap"]) for logit in logits]
    sink = -math.inf if layer["sinks"] is None else layer["sinks"][head]
    top = max([*logits, sink], default=0.0)
    return [math.exp(logit - top) for logit in logits], math.exp(sink - top)


def output_of(layer, head, query, seen):
    group = len(layer["queries"]) // len(layer["keys"])
    weights, sink = weights_of(layer, head, query, seen)
    if not seen:
        return np.zeros(layer["values"].shape[-1])
    total = sum(w * layer["values"][head // group][t] for w, t in zip(weights, seen, strict=True))
    return total / (sum(weights) + sink)


def oracle_mass(layer, kept, queries):
    """[H]"""
    heads, length, group = len(kept), layer["keys"].shape[1], len(layer["queries"]) // len(kept)
    shares = []
    for head in range(heads * group):
        found = paid = 0.0
        for query in range(max(0, length - queries), length):
            weights, sink = weights_of(layer, head, query, range(query + 1))
            paid += sum(weights) / (sum(weights) + sink)
            found += sum(weights[t] for t in kept[head // group] if t <= query) / (sum(weights) + sink)
        shares.append(found / paid)
    return [sum(shares[h * group : (h + 1) * group]) / group for h in range(heads)]


def oracle_error(layer, kept, queries, packed=None):
    """`packed`: the layer as its slots come back from their packed form."""
    length, group = layer["keys"].shape[1], len(layer["queries"]) // len(kept)
    lost = whole = 0.0
    for head in range(len(layer["queries"])):
        for query in range(max(0, length - queries), length):
            full = output_of(layer, head, query, list(range(query + 1)))
            reduced = output_of(packed or layer, head, query, [t for t in kept[head // group] if t <= query])
            lost += ((full - reduced) ** 2).sum()
            whole += (full**2).sum()
    return math.sqrt(lost / whole)


def oracle_iou(kept):
    sets = [set(head) for head in kept]
    return [[1.0 if a is b else len(a & b) / len(a | b) if a | b else 0.0 for b in sets] for a in sets]


def oracle_cosine(queries, strength=0.0):
    """Mean over heads of the mean over pairs of a head's queries [Hq, w, D]."""
    means = []
    for head in queries:
        if strength:
            common = head.mean(0) / np.linalg.norm(head.mean(0))
            head = np.stack([q + strength * (q - (q @ common) * common) for q in head])
        pairs = [a @ b / np.linalg.norm(a) / np.linalg.norm(b) for a, b in combinations(head, 2)]
        means.append(sum(pairs) / len(pairs))
    return sum(means) / len(means)


def plain(kept):
    return [positions.tolist() for positions in kept]


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
        last = dense["queries"][:, -window:]
        if last.shape[1] == 1:
            assert found.cosine is None
            assert found.diversified_cosine is None
            continue
        assert found.cosine == pytest.approx(oracle_cosine(last), abs=1e-5)
        assert found.diversified_cosine == pytest.approx(oracle_cosine(last, strength), abs=1e-5)
    assert diagnosis.coverage == len(union)
    assert diagnosis.coverage_share == pytest.approx(len(union) / length)


# --- whole diagnoses --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def llama():
    model = build("llama", num_hidden_layers=2)
    model.set_attn_implementation("winnow")
    return model


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
    assert_as_defined(found, llama, ids, method, window=8, queries=9, strength=0.45)
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
        assert_as_defined(found, model, ids, method, window=5, queries=12, strength=0.45)


@pytest.mark.parametrize("length", [1, 2, 5, 9])
@pytest.mark.parametrize("name", ["snapkv", "kvec", "aperturekv", "streamingllm", "full"])
def test_short_prompts(llama, length, name):
    method = ready(name, None if name == "full" else 20)
    ids = prompt(length=length)
    found = winnow.diagnose(llama, ids, method)
    assert_as_defined(found, llama, ids, method, window=8, queries=64, strength=0.45)
    assert found.coverage_share == found.mean_mass == found.rtd == found.iou == 1.0
    assert found.error == 0.0
    assert (found.cosine is None) == (length == 1)


def test_the_full_cache_loses_nothing(llama):
    found = winnow.diagnose(llama, prompt(length=LENGTH), winnow.method("full"))
    assert (found.coverage, found.coverage_share, found.rtd, found.iou) == (LENGTH, 1.0, 1.0, 1.0)
    assert (found.mean_mass, found.least_mass, found.error) == (1.0, 1.0, 0.0)


def test_means_and_extremes(llama):
    found = winnow.diagnose(llama, prompt(length=LENGTH), winnow.method("adakv", 12))
    counts = np.array(found.slots)
    assert found.mean_slots == counts.mean() == 12
    assert found.slot_range == (counts.min(), counts.max())
    assert found.rtd == pytest.approx(np.mean([layer.rtd for layer in found.layers]))
    assert found.iou == pytest.approx(np.mean([layer.iou[0, 1] for layer in found.layers]))
    assert found.mean_mass == pytest.approx(np.mean(found.mass))
    assert found.least_mass == pytest.approx(np.min(found.mass))
    errors = [layer.error for layer in found.layers]
    assert found.error == pytest.approx(np.mean(errors))
    assert found.worst_layer == int(np.argmax(errors))
    for layer, row in zip(found.layers, found.retention, strict=True):
        assert row.tolist() == [sum(t in head for head in plain(layer.kept)) for t in range(LENGTH)]


def test_one_kv_head_has_no_pairs():
    model = build("llama", num_hidden_layers=2, num_key_value_heads=1)
    model.set_attn_implementation("winnow")
    found = winnow.diagnose(model, prompt(length=30), winnow.method("snapkv", 10))
    assert found.iou is None
    assert found.as_dict()["layers"][0]["iou"] == [[1.0]]


def test_diversification_is_the_methods_own(llama):
    ids = prompt(length=LENGTH)
    weak = winnow.method("snapkv", 16, diversify=0.1)
    found = winnow.diagnose(llama, ids, weak, queries=4)
    assert found.diversify == 0.1
    assert_as_defined(found, llama, ids, weak, window=8, queries=4, strength=0.1)
    for name, strength in (("criticalkv(diversify=0.2)", 0.2), ("aperturekv", 0.45), ("snapkv", 0.45), ("tova", 0.45)):
        assert winnow.diagnose(llama, ids, winnow.method(name, 16)).diversify == strength


@pytest.mark.parametrize(("window", "queries"), [(1, 1), (8, 1), (1, 8), (30, 20), (100, 100)])
def test_window_and_queries_may_be_more_or_less_than_the_method_sees(llama, window, queries):
    ids = prompt(length=LENGTH)
    method = winnow.method("tova", 5)
    found = winnow.diagnose(llama, ids, method, window=window, queries=queries)
    assert_as_defined(found, llama, ids, method, window=window, queries=queries, strength=0.45)


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


def test_as_json(llama):
    found = winnow.diagnose(llama, prompt(length=LENGTH), winnow.method("snapkv", 16))
    entry = json.loads(json.dumps(found.as_dict()))
    assert (entry["method"], entry["budget"], entry["prompt_tokens"]) == ("snapkv", "16", LENGTH)
    assert [len(head) for head in entry["layers"][1]["kept"]] == entry["layers"][1]["slots"] == [16, 16]
    assert entry["error_mean"] == found.error


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


# --- refusals ---------------------------------------------------------------------------------------------------------


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


# --- the parts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", [{}, {"softcap": 1.5}, {"sinks": True}, {"softcap": 2.0, "sinks": True}], ids=str)
@pytest.mark.parametrize(("heads", "group", "length"), [(1, 1, 1), (2, 3, 9), (3, 2, 50)])
def test_attention_over_random_masks(model, heads, group, length):
    view = random_view(heads=heads, group=group, length=length, **model)
    layer = {name: getattr(view, name).double().numpy() for name in ("queries", "keys", "values")}
    layer |= {"scaling": view.scaling, "softcap": view.softcap}
    layer["sinks"] = None if view.sinks is None else view.sinks.double().numpy()
    mask = torch.rand(heads, length, generator=torch.Generator().manual_seed(1)) < 0.3
    mask[-1] = False  # a head without slots
    kept = [row.nonzero().flatten().tolist() for row in mask]
    found = kept_attention(view, mask, 7)
    np.testing.assert_allclose(found.mass, oracle_mass(layer, kept, 7), atol=1e-6)
    assert found.error == pytest.approx(oracle_error(layer, kept, 7), abs=1e-5)


@pytest.mark.parametrize("model", [{}, {"softcap": 1.5, "sinks": True}], ids=str)
def test_error_of_packed_slots(model):
    """The mass is that of the selection; the error includes what comes back from the packed form."""
    view = random_view(heads=2, group=2, length=20, **model)
    noise = torch.Generator().manual_seed(2)
    packed = view._replace(
        keys=view.keys + 0.3 * torch.randn(view.keys.shape, generator=noise),
        values=view.values + 0.3 * torch.randn(view.values.shape, generator=noise),
    )
    layers = [
        {name: getattr(each, name).double().numpy() for name in ("queries", "keys", "values")}
        | {"scaling": view.scaling, "softcap": view.softcap}
        | {"sinks": None if view.sinks is None else view.sinks.double().numpy()}
        for each in (view, packed)
    ]
    mask = torch.rand(2, 20, generator=torch.Generator().manual_seed(1)) < 0.5
    kept = [row.nonzero().flatten().tolist() for row in mask]
    found = kept_attention(view, mask, 7, packed)
    np.testing.assert_allclose(found.mass, oracle_mass(layers[0], kept, 7), atol=1e-6)
    assert found.error == pytest.approx(oracle_error(layers[0], kept, 7, layers[1]), abs=1e-5)


def test_packing_shows_in_the_error(llama):
    errors = [winnow.diagnose(llama, prompt(), winnow.method(f"full+bits({bits})")).error for bits in (8, 4, 2)]
    assert 0 < errors[0] < errors[1] < errors[2]


def test_blocks_do_not_change_attention(monkeypatch):
    view = random_view(heads=2, group=2, length=37, sinks=True)
    mask = torch.rand(2, 37, generator=torch.Generator().manual_seed(1)) < 0.3
    whole = kept_attention(view, mask, 30)
    monkeypatch.setattr("winnow.score.window._MOST_ROWS", 5)
    parts = kept_attention(view, mask, 30)
    torch.testing.assert_close(parts.mass, whole.mass)
    assert parts.error == pytest.approx(whole.error, rel=1e-5)


def test_attention_that_goes_to_sinks_alone_loses_nothing():
    view = random_view(heads=1, group=1, length=5, sinks=True)
    drained = view._replace(sinks=torch.full((1,), 1e4))
    found = kept_attention(drained, torch.zeros(1, 5, dtype=torch.bool), 5)
    assert (found.mass.tolist(), found.error) == ([1.0], 0.0)


def test_kept_sets():
    selection = Selection(torch.tensor([0, 2, 3, 2, 3, 4]), torch.tensor([0, 3, 6, 6, 6]))
    mask = kept_mask(selection, 8)
    assert mask.int().tolist() == [
        [1, 0, 1, 1, 0, 0, 0, 0],
        [0, 0, 1, 1, 1, 0, 0, 0],
        [0] * 8,
        [0] * 8,
    ]
    assert retained_diversity(mask) == 0.5
    assert overlap(mask).tolist() == [[1, 0.5, 0, 0], [0.5, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]
    assert mean_over_pairs(overlap(mask)) == pytest.approx(1 / 12)


def test_cosines_of_known_queries():
    east, north = [1.0, 0.0], [0.0, 2.0]
    assert mean_cosine(torch.tensor([[east, east, north]])) == pytest.approx(1 / 3)
    assert mean_cosine(torch.tensor([[east, east], [east, north]])) == pytest.approx(0.5)
    assert mean_cosine(torch.tensor([[east]])) is None


# --- memory -----------------------------------------------------------------------------------------------------------


class LargestTensor(TorchDispatchMode):
    """The largest tensor that any operation returns, in elements."""

    def __init__(self):
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else [result]:
            if isinstance(tensor, torch.Tensor):
                self.elements = max(self.elements, tensor.untyped_storage().nbytes() // tensor.element_size())
        return result


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr("winnow.score.window._BLOCK", 1 << 10)


def test_memory_of_a_diagnosis_is_linear_in_the_prompt(small_blocks):
    model = build("llama", num_hidden_layers=1, max_position_embeddings=1024)
    model.set_attn_implementation("winnow")
    largest = {}
    for length in (200, 800):
        with LargestTensor() as mode:
            winnow.diagnose(model, prompt(length=length), winnow.method("snapkv", 16), queries=length)
        largest[length] = mode.elements
    assert largest[800] < 4.4 * largest[200]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_memory_of_the_attention_is_linear_in_the_prompt(small_blocks, dtype):
    length = 600
    view = random_view(heads=2, group=2, length=length, sinks=True, softcap=3.0, dtype=dtype)
    with LargestTensor() as mode:
        kept_attention(view, torch.ones(2, length, dtype=torch.bool), length)
    assert mode.elements <= 4 * 16 * length
