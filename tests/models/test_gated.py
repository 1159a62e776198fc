"""Gates of MLPs in one call: which MLPs get it, and that models compute what they did."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.nn.utils import parametrizations, prune
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaMLP

from support.families import EVERY, build, build_any, prompt
from support.instruction_sets import needs_native
from support.stand_ins import assert_same_answers, assert_same_logits, loaded, used_copies
from winnow.kernels import linear
from winnow.kernels.gated import GatedPlan
from winnow.kernels.linear import multiplies_many
from winnow.models import feed_in_pieces, few_rows, gate_in_one_pass, gated, quantize_weights, quantized
from winnow.models.compiled import CompiledLinear
from winnow.models.gated import GatedMLP, gate_of_mlp
from winnow.models.int4 import Int4Linear
from winnow.models.int8 import Int8Linear
from winnow.models.mlps import PiecewiseMLP

pytestmark = [pytest.mark.usefixtures("one_thread"), needs_native]


@pytest.fixture(autouse=True)
def _as_on_amd(monkeypatch):
    """Winnow's linear layers and gates, as on processors where they outrun torch's."""
    monkeypatch.setattr(few_rows, "layers_of_this_processor", lambda: CompiledLinear)
    for module in (gated, quantized, linear):
        monkeypatch.setattr(module, "outruns_torch", lambda: True)


@pytest.fixture
def gates(monkeypatch) -> list[torch.Size]:
    """Shapes of the inputs whose gate the kernels did."""
    seen: list[torch.Size] = []
    run = GatedPlan.run

    def watched(plan, inputs):
        seen.append(inputs.shape)
        return run(plan, inputs)

    monkeypatch.setattr(GatedPlan, "run", watched)
    return seen


def mlp(dtype: torch.dtype = torch.float32, kind: type[LlamaMLP] = LlamaMLP, **settings: object) -> LlamaMLP:
    config = LlamaConfig(hidden_size=64, intermediate_size=128, **settings)
    return kind(config).to(dtype).requires_grad_(False)


def with_gates(plain: nn.Module) -> nn.Module:
    """A model of one MLP, as loading makes it."""
    model = nn.Sequential(copy.deepcopy(plain))
    few_rows.read_weights_directly(model)
    feed_in_pieces(model)
    gate_in_one_pass(model)
    return model


def replaced(model: nn.Module) -> list[nn.Module]:
    return [each for each in model.modules() if isinstance(each, GatedMLP)]


@torch.no_grad()
@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_pytorch_tanh"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_an_mlp_computes_what_it_did(dtype, activation, gates):
    plain = mlp(dtype, hidden_act=activation)
    model = with_gates(plain)
    assert replaced(model)
    for shape in ((1, 1), (2, 3), (7,), (1, 700)):
        inputs = torch.randn(*shape, 64).to(dtype)
        gates.clear()
        torch.testing.assert_close(model(inputs), plain(inputs), rtol=0, atol=8 * torch.finfo(dtype).eps)
        assert len(gates) == (shape != (1, 700) or multiplies_many(dtype))
    assert repr(model[0]).replace("GatedMLP", "LlamaMLP").replace("CompiledLinear", "Linear") == repr(plain)


@torch.no_grad()
@pytest.mark.parametrize("layer", [Int4Linear, Int8Linear])
def test_weights_of_few_bits(layer, gates):
    plain = mlp(torch.bfloat16)
    for name, part in list(plain.named_children()):
        if isinstance(part, nn.Linear):
            setattr(plain, name, layer.of(part))
    model = with_gates(plain)
    if not layer.is_compiled(plain.gate_proj):
        pytest.skip("torch packs such weights in another order here")
    inputs = torch.randn(1, 3, 64).bfloat16()
    gates.clear()
    torch.testing.assert_close(model(inputs), plain(inputs), rtol=0, atol=0.02)
    assert len(gates) == 1


class TwiceGatedMLP(LlamaMLP):
    def forward(self, x):
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x) ** 2)


class SwappedMLP(LlamaMLP):
    def forward(self, x):
        return self.down_proj(self.act_fn(self.up_proj(x)) * self.gate_proj(x))


OTHERS = {
    "twice": lambda: mlp(kind=TwiceGatedMLP),
    "the other layer": lambda: mlp(kind=SwappedMLP),
    "another activation": lambda: mlp(hidden_act="mish"),
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_mlps_that_compute_something_else_stay(other):
    model = nn.Sequential(other())
    few_rows.read_weights_directly(model)
    feed_in_pieces(model)
    assert isinstance(model[0], PiecewiseMLP)
    assert not GatedMLP.fits(model[0]) or gate_of_mlp(model[0]) is None
    gate_in_one_pass(model)
    assert not replaced(model)


def test_on_other_processors_mlps_stay(monkeypatch):
    monkeypatch.setattr(gated, "outruns_torch", lambda: False)
    assert not replaced(with_gates(mlp()))


@pytest.mark.parametrize("name", EVERY)
def test_models_compute_what_they_did(name, gates):
    model = build_any(name)
    plain = copy.deepcopy(model)
    few_rows.read_weights_directly(model)
    feed_in_pieces(model)
    gate_in_one_pass(model)
    gates.clear()
    assert_same_logits(model, plain)
    if name in ("llama", "qwen2", "qwen3", "mistral", "gemma", "gemma2", "gemma3_text"):
        assert len(replaced(model)) == model.config.num_hidden_layers == len(gates)


@torch.no_grad()
@pytest.mark.parametrize("weights", ["bfloat16", "int8", "int4"])
def test_gemma_computes_what_it_did_with_weights_of_any_kind(weights, gates):
    model = build("gemma3_text", intermediate_size=128).bfloat16()
    if weights == "bfloat16":
        few_rows.read_weights_directly(model)
    else:
        quantize_weights(model, weights)
    plain = copy.deepcopy(model)
    feed_in_pieces(model)
    gate_in_one_pass(model)
    gates.clear()
    found, expected = model(prompt(2, 3)).logits.float(), plain(prompt(2, 3)).logits.float()
    assert float((found - expected).norm()) < 0.02 * float(expected.norm())
    if weights != "int4" or Int4Linear.is_compiled(plain.model.layers[0].mlp.gate_proj):
        assert len(gates) == model.config.num_hidden_layers


@torch.no_grad()
def test_parts_may_change(gates):
    model, inputs = with_gates(mlp()), torch.randn(1, 2, 64)
    made = model[0]

    def check(count: int) -> None:
        gates.clear()
        expected = made.down_proj(made.act_fn(made.gate_proj(inputs)) * made.up_proj(inputs))
        torch.testing.assert_close(made(inputs), expected)
        assert len(gates) == count

    check(1)
    made.gate_proj.weight.mul_(2)
    check(1)
    made.up_proj.weight = nn.Parameter(torch.randn(128, 64), requires_grad=False)
    check(1)
    handle = made.gate_proj.register_forward_hook(lambda *_: None)
    check(0)
    handle.remove()
    check(1)
    made.up_proj = nn.Linear(64, 128)
    check(0)


PATCHES = {
    "a forward of the gate": lambda made: patch(made.gate_proj),
    "a forward of the other layer": lambda made: patch(made.up_proj),
    "a forward of the activation": lambda made: patch(made.act_fn),
    "a forward of the last layer": lambda made: patch(made.down_proj),
    "another last layer": lambda made: made.register_module("down_proj", nn.Sequential(made.down_proj, nn.Tanh())),
    "another activation": lambda made: setattr(made, "act_fn", nn.GELU()),
}


def patch(part: nn.Module) -> None:
    before = part.forward
    part.forward = lambda inputs: before(inputs) + 1


@torch.no_grad()
@pytest.mark.parametrize("change", PATCHES.values(), ids=PATCHES)
def test_what_others_put_on_parts_counts(change, gates):
    plain = mlp()
    model, inputs = with_gates(plain), torch.randn(1, 2, 64)
    change(plain)
    change(model[0])
    gates.clear()
    torch.testing.assert_close(model(inputs), plain(inputs))
    assert all("last layer" in name for name, each in PATCHES.items() if each is change) == bool(gates)


@torch.no_grad()
@pytest.mark.parametrize("kinds", [(Int8Linear, Int4Linear), (Int4Linear, Int8Linear), (Int8Linear, Int8Linear)])
def test_layers_of_different_kinds(kinds, gates):
    plain = mlp(torch.bfloat16)
    plain.gate_proj, plain.up_proj = kinds[0].of(plain.gate_proj), kinds[1].of(plain.up_proj)
    if not all(each.is_compiled() for each in (plain.gate_proj, plain.up_proj)):
        pytest.skip("torch packs such weights in another order here")
    model, inputs = with_gates(plain), torch.randn(1, 2, 64).bfloat16()
    gates.clear()
    expected = plain(inputs)
    torch.testing.assert_close(model(inputs), expected, rtol=0, atol=0.02 * float(expected.abs().max()))
    assert len(gates) == 1


@torch.no_grad()
def test_the_last_layer_is_the_one_that_is_there(gates):
    model, inputs = with_gates(mlp()), torch.randn(1, 2, 64)
    made, seen = model[0], []

    def check() -> None:
        gated = made.act_fn(made.gate_proj(inputs)) * made.up_proj(inputs)
        torch.testing.assert_close(made(inputs), made.down_proj(gated))

    check()
    made.down_proj.weight = nn.Parameter(torch.randn(64, 128), requires_grad=False)
    check()
    made.down_proj.bias = nn.Parameter(torch.randn(64), requires_grad=False)
    check()
    handle = made.down_proj.register_forward_hook(lambda *given: seen.append(given))
    gates.clear()
    check()
    handle.remove()
    assert len(seen) == 2
    assert len(gates) == 1
    made.down_proj.weight.requires_grad_()
    with torch.enable_grad():
        assert made(inputs).requires_grad


@torch.no_grad()
def test_copies_have_the_activation_that_was_tried(gates):
    model, inputs = with_gates(mlp()), torch.randn(1, 2, 64)
    made = copy.deepcopy(model)
    gates.clear()
    made(inputs)
    assert len(gates) == 1


@torch.no_grad()
@pytest.mark.parametrize("register", [register_module_forward_hook, register_module_forward_pre_hook])
def test_hooks_on_all_modules_see_the_parts(register, gates):
    model, seen = with_gates(mlp()), []
    handle = register(lambda module, *_: seen.append(module))
    gates.clear()
    model(torch.randn(1, 2, 64))
    handle.remove()
    assert set(seen) == set(model.modules())
    assert not gates


def test_mlps_with_hooks_are_not_tried():
    model, seen = nn.Sequential(mlp()), []
    few_rows.read_weights_directly(model)
    feed_in_pieces(model)
    model[0].act_fn.register_forward_hook(lambda *_: seen.append(0))
    gate_in_one_pass(model)
    assert not seen
    assert not replaced(model)


@torch.no_grad()
@pytest.mark.parametrize("part", ["gate_proj", "down_proj"])
def test_pruned_and_parametrized_layers_are_the_usual_ones(part, gates):
    plain = mlp()
    model, inputs = with_gates(plain), torch.randn(1, 2, 64)
    for change in (lambda layer: prune.l1_unstructured(layer, "weight", amount=0.3), parametrizations.weight_norm):
        before = copy.deepcopy((plain, model))
        for each in (plain, model[0]):
            change(each.get_submodule(part))
        torch.testing.assert_close(model(inputs), plain(inputs))
        plain, model = before


def test_gradients_are_those_of_the_mlp(gates):
    plain = mlp().requires_grad_(True)
    model = with_gates(plain)
    gates.clear()
    grads = []
    for each in (model, plain):
        inputs = torch.linspace(-2, 2, 3 * 64).view(1, 3, 64).requires_grad_()
        each(inputs).square().sum().backward()
        grads.append(inputs.grad)
    torch.testing.assert_close(*grads)
    assert not gates


@torch.no_grad()
def test_compiled_mlps_compute_what_they_did(gates):
    plain = mlp()
    model, inputs = with_gates(plain), torch.randn(1, 2, 64)
    gates.clear()
    torch.testing.assert_close(torch.compile(model, backend="eager", fullgraph=True)(inputs), plain(inputs))
    torch._dynamo.reset()
    assert not gates


def test_copies_and_pickles_have_plans_of_their_own(gates):
    model = build("llama")
    few_rows.read_weights_directly(model)
    feed_in_pieces(model)
    gate_in_one_pass(model)
    with torch.no_grad():
        expected = model(prompt(1, 3)).logits
        for each in used_copies(model):
            gates.clear()
            torch.testing.assert_close(each(prompt(1, 3)).logits, expected)
            assert len(gates) == 3


def test_loaded_models_answer_as_before(gates):
    model, plain = loaded()
    gates.clear()
    assert_same_answers(model, plain)
    assert gates
