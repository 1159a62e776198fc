"""The output projection of every family, and projections that cannot be read."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

import winnow
from support.families import ONE_AXIS, build, prompt
from support.watching import OUTPUTS, N, Seen, attentions, run, watched
from winnow.cache.projection import output_projection
from winnow.errors import ModelError


@pytest.fixture(scope="module", params=ONE_AXIS)
def model(request: pytest.FixtureRequest) -> PreTrainedModel:
    return watched(request.param)


@pytest.fixture(scope="module")
def seen(model: PreTrainedModel) -> Seen:
    return run(model, prompt(length=N))


def test_heads_outputs_times_the_projection_are_the_modules_output(model: PreTrainedModel, seen: Seen) -> None:
    for view, module, (inputs, output) in zip(seen.views, attentions(model), seen.projected, strict=True):
        bias = next(child for name, child in module.named_children() if name in OUTPUTS).bias
        assert view.output_projection is not None
        heads, dim, _ = view.output_projection.shape
        assert (heads, dim) == (view.queries.shape[0], view.values.shape[-1])
        added = torch.einsum("nhd,hde->ne", inputs.view(N, heads, dim), view.output_projection)
        expected = output[0] if bias is None else output[0] - bias
        torch.testing.assert_close(added, expected, rtol=1e-4, atol=1e-5)


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
