"""Rotary positions of every family: told apart, inverted, and averaged for later positions."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.models.llama import modeling_llama

import winnow
from support.families import ONE_AXIS, build, prompt
from support.oracle import full_layers
from support.watching import N, Seen, attentions, prepared, run, watched
from winnow.cache.rotary import Rotary, Unrotated, rotation_of
from winnow.errors import ModelError

UNROTATED = {"gpt2", "cohere2", "exaone4", "llama4_text"}
"""Families whose full-attention layers have no rotary positions."""
HYBRID = {"qwen3_next", "lfm2", "falcon_h1"}
"""Families whose linear layers make a repeated token's states depend on its position."""
FUSED = {"phi3", "gpt_neox", "gpt2"}
"""Families without a module whose output is the queries before their rotation."""


@pytest.fixture(scope="module", params=ONE_AXIS)
def model(request: pytest.FixtureRequest) -> PreTrainedModel:
    return watched(request.param)


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
            assert torch.equal(view.rotation.inverse(view.queries, 0), view.queries)
            assert torch.equal(view.rotation.mean(3, 5), torch.eye(view.queries.shape[-1]))
            continue
        queries = view.rotation.inverse(view.queries, 0)
        assert spread(view.queries) > 0.1
        assert spread(queries) < 1e-4
        # the mean rotation of the prompt's positions takes the one query to the mean of those seen
        mean = queries[:, 0] @ view.rotation.mean(0, N).T
        torch.testing.assert_close(mean, view.queries.mean(dim=1), rtol=1e-4, atol=1e-4)
        later = view.rotation.inverse(view.queries[:, 9:], 9)
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
        torch.testing.assert_close(view.rotation.inverse(view.queries, 0), expected[0], rtol=1e-4, atol=1e-4)


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
    torch.testing.assert_close(rotation.inverse(queries, 0), expected, rtol=1e-4, atol=1e-4)
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
        assert spread(views[0].rotation.inverse(views[0].queries, 0)) < 0.05


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
