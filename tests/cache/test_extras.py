"""What scorers may ask of a model, on every family: how queries were rotated, and the output projection."""

from __future__ import annotations

import gc
import weakref
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.models.llama import modeling_llama

import winnow
from support.families import FAMILIES, build, prompt, vision_models
from support.oracle import full_layers
from winnow.allocate import Uniform
from winnow.budget import Budget
from winnow.cache.projection import output_projection
from winnow.cache.rotary import Rotary, Unrotated, rotation_of
from winnow.composition.method import Method
from winnow.errors import CacheError, ModelError
from winnow.score import Scorer
from winnow.store import Dense
from winnow.view import Extra, LayerView

N = 24
UNROTATED = {"gpt2", "cohere2", "exaone4", "llama4_text"}
"""Families whose full-attention layers have no rotary positions."""
HYBRID = {"qwen3_next", "lfm2", "falcon_h1"}
"""Families whose linear layers make a repeated token's states depend on its position."""
FUSED = {"phi3", "gpt_neox", "gpt2"}
"""Families without a module whose output is the queries before their rotation."""
BEFORE = ("q_proj", "q_norm", "q_layernorm")
OUTPUTS = ("o_proj", "out_proj", "dense", "c_proj")


@dataclass(frozen=True)
class Watching(Scorer):
    """Notes what it is shown."""

    seen: list[LayerView] = field(default_factory=list, compare=False)
    asks: Extra = Extra.ROTATION | Extra.OUTPUT

    @property
    def extras(self) -> Extra:
        return self.asks

    def queries_needed(self, length: int) -> int:
        return length

    def __call__(self, view: LayerView) -> Tensor:
        self.seen.append(view)
        return torch.zeros(view.keys.shape[:2])


class Seen(NamedTuple):
    """One prompt through a model: of every full-attention layer what its scorer and some of its modules saw."""

    views: list[LayerView]
    before: list[dict[str, Tensor]]
    projected: list[tuple[Tensor, Tensor]]


def prepared(model: PreTrainedModel) -> PreTrainedModel:
    """For winnow, and without attention sinks, which leave a repeated token with less the fewer tokens it sees."""
    for name, parameter in model.named_parameters():
        if name.endswith("sinks"):
            parameter.data.fill_(-1e4)
    model.set_attn_implementation("winnow")
    return model


def watching(asks: Extra = Extra.ROTATION | Extra.OUTPUT) -> tuple[Method, list[LayerView]]:
    scorer = Watching(asks=asks)
    return Method("watching", scorer, Uniform(), Dense(), Budget.parse(5)), scorer.seen


def attentions(model: PreTrainedModel) -> list[nn.Module]:
    full = full_layers(model)
    found = {
        module.layer_idx: module
        for name, module in model.named_modules()
        if "Attention" in type(module).__name__ and getattr(module, "layer_idx", None) in full and "vision" not in name
    }
    return [found[index] for index in full]


def run(model: PreTrainedModel, ids: Tensor) -> Seen:
    method, views = watching()
    cache = winnow.CompressedCache(model, method)
    modules = attentions(model)
    before: list[dict[str, Tensor]] = [{} for _ in modules]
    projected: list[Any] = [None] * len(modules)
    hooks = []
    for index, module in enumerate(modules):
        for name, child in module.named_children():
            if name in BEFORE:
                hooks.append(child.register_forward_hook(_note(before[index], name)))
            if name in OUTPUTS:
                hooks.append(child.register_forward_hook(_note(projected, index)))
    with torch.no_grad():
        model(ids, past_key_values=cache)
    for hook in hooks:
        hook.remove()
    return Seen(views, before, projected)


def _note(target: Any, key: Any) -> Any:
    def note(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        target[key] = output if isinstance(key, str) else (inputs[0], output)

    return note


@pytest.fixture(scope="module", params=[*FAMILIES, *vision_models()])
def model(request: pytest.FixtureRequest) -> PreTrainedModel:
    made = vision_models()[request.param]() if request.param in vision_models() else build(request.param)
    made.family = request.param
    for name, parameter in made.named_parameters():
        if name.endswith("bias") and "norm" not in name:
            nn.init.normal_(parameter, std=0.1)
    return prepared(made)


@pytest.fixture(scope="module")
def seen(model: PreTrainedModel) -> Seen:
    return run(model, prompt(length=N))


def spread(states: Tensor) -> float:
    return float((states - states[:, :1]).abs().max() / states.abs().max())


def test_a_repeated_token_has_one_query(model: PreTrainedModel) -> None:
    views = run(model, torch.full((1, N), 7)).views
    assert len(views) == len(full_layers(model))
    if model.family in HYBRID:
        views = views[:1] if model.family == "falcon_h1" else []
    for view in views:
        assert view.rotation is not None
        if isinstance(view.rotation, Unrotated):
            assert torch.equal(view.rotation.undo(view.queries, 0), view.queries)
            assert torch.equal(view.rotation.mean(3, 5), torch.eye(view.queries.shape[-1]))
            continue
        queries = view.rotation.undo(view.queries, 0)
        assert spread(view.queries) > 0.1
        assert spread(queries) < 1e-4
        # the mean rotation of the prompt's positions takes the one query to the mean of those seen
        mean = queries[:, 0] @ view.rotation.mean(0, N).T
        torch.testing.assert_close(mean, view.queries.mean(dim=1), rtol=1e-4, atol=1e-4)
        later = view.rotation.undo(view.queries[:, 9:], 9)
        torch.testing.assert_close(later, queries[:, 9:])


def test_layers_without_rotary_positions_are_told_apart(model: PreTrainedModel, seen: Seen) -> None:
    kinds = {type(view.rotation) for view in seen.views}
    if model.family == "smollm3":
        assert [type(view.rotation) for view in seen.views] == [Rotary, Unrotated, Rotary, Unrotated]
    else:
        assert kinds == {Unrotated if model.family in UNROTATED else Rotary}


def test_undone_queries_are_those_before_the_rotation(model: PreTrainedModel, seen: Seen) -> None:
    if model.family in FUSED:
        pytest.skip("queries come out of one product with keys and values")
    for view, before in zip(seen.views, seen.before, strict=True):
        heads, _, dim = view.queries.shape
        expected = before.get("q_norm", before.get("q_layernorm", before.get("q_proj")))
        assert expected is not None
        if expected.shape[1] == N:
            expected = expected.view(1, N, heads, dim).transpose(1, 2)
        assert view.rotation is not None
        torch.testing.assert_close(view.rotation.undo(view.queries, 0), expected[0], rtol=1e-4, atol=1e-4)


def test_heads_outputs_times_the_projection_are_the_modules_output(model: PreTrainedModel, seen: Seen) -> None:
    for view, module, (inputs, output) in zip(seen.views, attentions(model), seen.projected, strict=True):
        bias = next(child for name, child in module.named_children() if name in OUTPUTS).bias
        assert view.output is not None
        heads, dim, _ = view.output.shape
        assert (heads, dim) == (view.queries.shape[0], view.values.shape[-1])
        added = torch.einsum("nhd,hde->ne", inputs.view(N, heads, dim), view.output)
        expected = output[0] if bias is None else output[0] - bias
        torch.testing.assert_close(added, expected, rtol=1e-4, atol=1e-5)


SCALINGS: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "factor": 4.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
    "yarn-attention": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 16,
        "attention_factor": 3.0,
    },
    "longrope": {
        "rope_type": "longrope",
        "factor": 4.0,
        "original_max_position_embeddings": 16,
        "short_factor": [1.0] * 8,
        "long_factor": [1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5],
    },
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
}


@pytest.mark.parametrize("length", [12, 40])
@pytest.mark.parametrize("scaling", SCALINGS)
def test_scaled_rotations_are_undone_and_left_alone(scaling: str, length: int) -> None:
    """Beyond the trained 16 positions as well; looking ahead must not change the angles that the model will use."""
    parameters = {"rope_theta": 10000.0, **SCALINGS[scaling]}
    model = build("llama", num_hidden_layers=1, max_position_embeddings=16, rope_parameters=parameters)
    seen = run(prepared(model), prompt(length=length))
    angles = model.model.rotary_emb.inv_freq.clone()
    rotation, queries = seen.views[0].rotation, seen.views[0].queries
    assert rotation is not None
    expected = seen.before[0]["q_proj"].view(length, 4, 16).transpose(0, 1)
    torch.testing.assert_close(rotation.undo(queries, 0), expected, rtol=1e-4, atol=1e-4)
    if scaling == "yarn-attention":
        size = torch.linalg.matrix_norm(rotation.mean(length, 1), ord=2)
        torch.testing.assert_close(size, torch.tensor(3.0))
    rotation.mean(length, 512)
    assert torch.equal(model.model.rotary_emb.inv_freq, angles)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", ["llama", "cohere", "gpt_oss", "smollm3", "gpt2"])
def test_low_precision(family: str, dtype: torch.dtype) -> None:
    model = prepared(build(family).to(dtype))
    views = run(model, torch.full((1, N), 7)).views
    exact = [type(rotation_of(twin, module)) for twin in [build(family)] for module in attentions(twin)]
    assert [type(view.rotation) for view in views] == exact
    assert views[0].rotation is not None
    if family != "gpt2":
        assert spread(views[0].rotation.undo(views[0].queries, 0)) < 0.05


def odd_rotation(queries: Tensor, keys: Tensor, cos: Tensor, sin: Tensor, **_: Any) -> tuple[Tensor, Tensor]:
    return tuple((x * cos + x.flip(-1) * sin) for x in (queries, keys))  # type: ignore[return-value]


def test_rotations_that_are_not_understood_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(match: str) -> None:
        model.set_attn_implementation("winnow")
        winnow.CompressedCache(model, winnow.method("snapkv", 20))
        with pytest.raises(ModelError, match=rf"(?s){match}.*snapkv"):
            winnow.CompressedCache(model, winnow.method("expectedattention", 20))

    model = build("llama")
    model.model.rotary_emb.mrope_section = [2, 3, 3]
    refused("several axes")
    model = build("llama")
    model.model.second = modeling_llama.LlamaRotaryEmbedding(model.config)
    refused("several embeddings")
    model = build("llama")
    model.model.rotary_emb.__class__ = type("Angles", (modeling_llama.LlamaRotaryEmbedding,), {})
    refused("running it failed")
    monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb", odd_rotation)
    model = build("llama")
    refused("no known layout")


def test_a_new_embedding_is_noticed() -> None:
    model = build("llama", num_hidden_layers=1)
    model.set_attn_implementation("winnow")
    first = run(model, prompt(length=N)).views[0]
    config = deepcopy(model.config)
    config.rope_parameters["rope_theta"] = 7.0
    model.model.rotary_emb = modeling_llama.LlamaRotaryEmbedding(config)
    second = run(model, prompt(length=N)).views[0]
    assert first.rotation is not None
    assert second.rotation is not None
    assert not torch.allclose(first.rotation.mean(N, 9), second.rotation.mean(N, 9))


class Adapted(nn.Module):
    """A projection with something beside its weight."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.weight, self.beside = base.weight, nn.Linear(base.in_features, base.out_features)

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs @ self.weight.T + self.beside(inputs)


def test_projections_that_cannot_be_read_are_refused() -> None:
    def made() -> tuple[PreTrainedModel, nn.Module]:
        model = build("llama", num_hidden_layers=1)
        model.set_attn_implementation("winnow")
        return model, model.model.layers[0].self_attn

    model, attention = made()
    attention.o_proj.weight = nn.Parameter(attention.o_proj.weight.to(torch.int8), requires_grad=False)
    with pytest.raises(ModelError, match=r"no plain weight.*snapkv"):
        winnow.CompressedCache(model, winnow.method("criticalkv", 20))
    model, attention = made()
    attention.o_proj = attention.o_proj.to("meta")
    with pytest.raises(ModelError, match="offloaded"):
        winnow.CompressedCache(model, winnow.method("criticalkv", 20))
    model, attention = made()
    attention.mixer = attention.o_proj
    del attention.o_proj
    with pytest.raises(ModelError, match="no output projection"):
        winnow.CompressedCache(model, winnow.method("criticalkv", 20))
    model, attention = made()
    attention.o_proj = Adapted(attention.o_proj)
    cache = winnow.CompressedCache(model, winnow.method("criticalkv", 20))
    with pytest.raises(ModelError, match="adapter"), torch.no_grad():
        model(prompt(length=N), past_key_values=cache)


def test_square_weights_of_either_orientation() -> None:
    """Conv1D keeps [in, out]; with as many inputs as outputs only trying tells."""
    for family, name in (("gpt2", "c_proj"), ("llama", "o_proj")):
        module = attentions(build(family))[0]
        projection = getattr(module, name)
        inputs = torch.randn(3, 64)
        expected = projection(inputs) if projection.bias is None else projection(inputs) - projection.bias
        matrix = output_projection(module, 4, 16)
        assert matrix.data_ptr() == projection.weight.data_ptr()
        torch.testing.assert_close(torch.einsum("nhd,hde->ne", inputs.view(3, 4, 16), matrix), expected)


def test_only_who_asks_is_shown() -> None:
    model = build("llama")
    model.set_attn_implementation("winnow")
    for asks in (Extra.NONE, Extra.ROTATION, Extra.OUTPUT):
        method, views = watching(asks)
        with torch.no_grad():
            model(prompt(length=N), past_key_values=winnow.CompressedCache(model, method))
        assert {(view.rotation is not None, view.output is not None) for view in views} == {
            (asks is Extra.ROTATION, asks is Extra.OUTPUT)
        }


def test_a_cache_neither_copies_nor_keeps_its_model() -> None:
    model = build("llama")
    model.set_attn_implementation("winnow")
    cache = winnow.CompressedCache(model, winnow.method("full"))
    cache.activate_past_recording()
    with torch.no_grad():
        model(prompt(length=N), past_key_values=cache)
    method = winnow.method("expectedattention+critical", 12)
    fork = deepcopy(cache)
    assert fork.compressed_layers()[0].attention() is model.model.layers[0].self_attn
    first, second = cache.compressed_by(method), fork.compressed_by(method)
    for layer in range(3):
        for one, other in zip(first.kept(layer), second.kept(layer), strict=True):
            assert torch.equal(one, other)
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None
    with pytest.raises(CacheError, match="gone"):
        cache.compressed_by(method)
