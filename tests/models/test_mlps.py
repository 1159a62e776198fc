"""MLPs in pieces: which are replaced, what pieces they see, and that models compute what they did."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.modules.module import register_module_forward_hook
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaMLP

from support.dense_attention import DTYPES
from support.families import EVERY, build, build_any
from support.stand_ins import assert_files_know_the_model, assert_same_answers, assert_same_logits, loaded, used_copies
from winnow.models import feed_in_pieces, mlps
from winnow.models.int4 import Int4Linear
from winnow.models.int8 import Int8Linear
from winnow.models.mlps import PiecewiseMLP, computes_each_token_alone

FEWEST = 4


@pytest.fixture(autouse=True)
def _short_pieces(monkeypatch, one_thread):
    """Pieces so short that short prompts have several."""
    monkeypatch.setattr(mlps, "_FEWEST", FEWEST)
    monkeypatch.setattr(mlps, "_BETWEEN", 0)
    monkeypatch.setattr(mlps, "_ROWS", 1)


def mlp(dtype: torch.dtype = torch.float32, kind: type[LlamaMLP] = LlamaMLP) -> LlamaMLP:
    config = LlamaConfig(hidden_size=64, intermediate_size=128)
    return kind(config).to(dtype).requires_grad_(False)


def replaced(model: nn.Module) -> list[PiecewiseMLP]:
    return [each for each in model.modules() if isinstance(each, PiecewiseMLP)]


def pieces_seen(made: PiecewiseMLP, hidden_states: torch.Tensor) -> list[int]:
    """Tokens of each piece, as the activation sees them."""
    seen: list[int] = []
    activation = made.act_fn

    class Spy(nn.Module):
        def forward(self, numbers):
            seen.append(numbers.numel() // numbers.shape[-1])
            return activation(numbers)

    made.act_fn = Spy()
    made(hidden_states)
    made.act_fn = activation
    return seen


@torch.no_grad()
@given(rows=st.integers(0, 3), tokens=st.integers(0, 19), dtype=st.sampled_from(DTYPES))
def test_an_mlp_computes_what_it_did(rows, tokens, dtype):
    torch.manual_seed(rows + 31 * tokens)
    plain = mlp(dtype)
    assert PiecewiseMLP.fits(plain)
    made = PiecewiseMLP(copy.deepcopy(plain))
    inputs = torch.randn(rows, tokens, 64).to(dtype)
    torch.testing.assert_close(made(inputs), plain(inputs), rtol=0, atol=8 * torch.finfo(dtype).eps)
    assert repr(made).replace("PiecewiseMLP", "LlamaMLP") == repr(plain)


@torch.no_grad()
def test_pieces_are_as_long_as_what_lies_between_allows(monkeypatch):
    made = PiecewiseMLP(mlp())
    assert pieces_seen(made, torch.randn(1, 4, 64)) == [4]
    assert pieces_seen(made, torch.randn(2, 5, 64)) == [4, 4, 2]
    assert pieces_seen(made, torch.randn(5, 64)) == [3, 2]
    monkeypatch.setattr(mlps, "_BETWEEN", 6 * 128 * 4)
    assert pieces_seen(made, torch.randn(15, 64)) == [5, 5, 5]
    assert pieces_seen(PiecewiseMLP(mlp(torch.bfloat16)), torch.randn(15, 64).bfloat16()) == [8, 7]
    monkeypatch.setattr(mlps, "_ROWS", 4)
    assert pieces_seen(made, torch.randn(15, 64)) == [8, 7]


@torch.no_grad()
def test_inputs_that_lie_in_another_order_are_read_right():
    plain = mlp()
    inputs = torch.randn(64, 7, 3).permute(2, 1, 0)
    torch.testing.assert_close(PiecewiseMLP(copy.deepcopy(plain))(inputs), plain(inputs))


class MixingMLP(LlamaMLP):
    """Tokens that see those before them."""

    def forward(self, x):
        return super().forward(x.cumsum(dim=-2))


class WideningMLP(LlamaMLP):
    def forward(self, x):
        return torch.cat([super().forward(x), x], -1)


class PromotingMLP(LlamaMLP):
    def forward(self, x):
        return super().forward(x).double()


@pytest.mark.parametrize("other", [MixingMLP, WideningMLP, PromotingMLP])
def test_mlps_that_compute_something_else_stay(other):
    model = nn.Sequential(mlp(kind=other))
    assert PiecewiseMLP.fits(model[0])
    assert not computes_each_token_alone(model[0])
    feed_in_pieces(model)
    assert not replaced(model)


class HelpedMLP(LlamaMLP):
    """As Gemma 3n's, whose forward calls a method of its own."""

    SHIFT = 0.5

    @staticmethod
    def scaled(numbers):
        return 2 * numbers

    def gated(self, x):
        return self.scaled(self.act_fn(self.gate_proj(x))) + self.SHIFT

    def forward(self, x):
        return self.down_proj(self.gated(x) * self.up_proj(x))


@torch.no_grad()
def test_an_mlp_may_have_methods_of_its_own():
    plain = mlp(kind=HelpedMLP)
    made = PiecewiseMLP(plain)
    hidden_states = torch.randn(1, 3 * FEWEST, 64)
    torch.testing.assert_close(made(hidden_states), plain(hidden_states))
    with pytest.raises(AttributeError, match="nowhere"):
        made.nowhere  # noqa: B018
    assert torch.equal(copy.deepcopy(made)(hidden_states), made(hidden_states))


def test_what_has_not_the_parts_of_such_an_mlp_stays():
    class GatedMLP(LlamaMLP):
        def forward(self, x, gate=1):
            return super().forward(x) * gate

    class Feed(LlamaMLP):
        pass

    scaled, buffered, wrapped = mlp(), mlp(), mlp()
    scaled.scale = nn.Parameter(torch.ones(64))
    buffered.register_buffer("scale", torch.ones(64))
    wrapped.forward = lambda x: x
    empty = type("EmptyMLP", (nn.Module,), {"forward": lambda self, x: x})()
    for other in (mlp(kind=GatedMLP), mlp(kind=Feed), scaled, buffered, wrapped, empty, PiecewiseMLP(mlp())):
        assert not PiecewiseMLP.fits(other)
    assert not computes_each_token_alone(mlp().to("meta"))


def test_mlps_with_other_settings_are_tried_anew():
    class SometimesMLP(MixingMLP):
        def forward(self, x):
            return super().forward(x) if self.mixes else LlamaMLP.forward(self, x)

        def extra_repr(self):
            return f"mixes={self.mixes}"

    model = nn.Sequential(*(mlp(kind=SometimesMLP) for _ in range(3)))
    for number, each in enumerate(model):
        each.mixes = number == 1
    feed_in_pieces(model)
    assert [isinstance(each, PiecewiseMLP) for each in model] == [True, False, True]


@pytest.mark.parametrize("name", EVERY)
def test_models_compute_what_they_did(name):
    model = build_any(name)
    plain = copy.deepcopy(model)
    feed_in_pieces(model)
    assert_same_logits(model, plain)
    if name in ("llama", "qwen2", "gemma", "phi3", "gpt_neox"):
        assert len(replaced(model)) == model.config.num_hidden_layers


@torch.no_grad()
@pytest.mark.parametrize("layer", [Int4Linear, Int8Linear])
def test_weights_of_few_bits_are_multiplied_in_pieces(layer):
    plain = mlp(torch.bfloat16)
    for name, part in list(plain.named_children()):
        if isinstance(part, nn.Linear):
            setattr(plain, name, layer.of(part))
    model = nn.Sequential(copy.deepcopy(plain))
    feed_in_pieces(model)
    inputs = torch.randn(1, 150, 64).bfloat16()
    assert pieces_seen(model[0], inputs) == [FEWEST] * 37 + [2]
    torch.testing.assert_close(model(inputs), plain(inputs), rtol=0, atol=0.02)


def test_gradients_and_hooks_see_all_tokens():
    plain = mlp().requires_grad_(True)
    made = PiecewiseMLP(copy.deepcopy(plain))
    grads = []
    for each in (made, plain):
        inputs = torch.linspace(-2, 2, 9 * 64).view(1, 9, 64).requires_grad_()
        each(inputs).square().sum().backward()
        grads.append((inputs.grad, each.up_proj.weight.grad))
    assert all(torch.equal(one, other) for one, other in zip(*grads, strict=True))
    assert pieces_seen(made, torch.randn(1, 9, 64)) == [9]
    with torch.no_grad():
        assert pieces_seen(made, torch.randn(1, 9, 64)) == [3, 3, 3]
        for watch in (made.up_proj.register_forward_hook, made.down_proj.register_forward_pre_hook):
            handle = watch(lambda *_: None)
            assert pieces_seen(made, torch.randn(1, 9, 64)) == [9]
            handle.remove()


@torch.no_grad()
def test_what_others_put_on_parts_sees_all_tokens():
    made, inputs = PiecewiseMLP(mlp()), torch.randn(1, 9, 64)
    handle = register_module_forward_hook(lambda *_: None)
    assert pieces_seen(made, inputs) == [9]
    handle.remove()
    assert pieces_seen(made, inputs) == [3, 3, 3]
    made.down_proj.forward = made.down_proj.forward
    assert pieces_seen(made, inputs) == [9]


@pytest.mark.parametrize("watched", [lambda each: each, lambda each: each.up_proj])
def test_mlps_with_hooks_are_not_tried(watched):
    model, seen = nn.Sequential(mlp(), mlp()), []
    watched(model[0]).register_forward_hook(lambda *_: seen.append(0))
    feed_in_pieces(model)
    assert not seen
    assert [isinstance(each, PiecewiseMLP) for each in model] == [False, True]


@torch.no_grad()
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_compiled_and_traced_mlps_compute_what_they_did():
    made, plain = (PiecewiseMLP(mlp()), mlp())
    plain.load_state_dict(made.state_dict())
    inputs = torch.randn(1, 9, 64)
    torch.testing.assert_close(torch.compile(made, backend="eager", fullgraph=True)(inputs), plain(inputs))
    torch._dynamo.reset()
    # The pieces of the first prompt must not stand in the trace as a constant.
    torch.testing.assert_close(torch.jit.trace(made, torch.randn(1, 5, 64))(inputs), plain(inputs))
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(made(inputs), plain(inputs))


def test_files_know_the_model_and_its_parameters_stay(tmp_path):
    model = build("llama")
    plain = copy.deepcopy(model)
    feed_in_pieces(model)
    for each in used_copies(model):
        assert len(replaced(each)) == len(replaced(model)) > 0
    assert_files_know_the_model(model, plain, tmp_path)


def test_loaded_models_have_such_mlps_and_answer_as_before():
    model, plain = loaded()
    assert replaced(model)
    assert not replaced(plain)
    assert_same_answers(model, plain)
