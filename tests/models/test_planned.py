"""Plans of layers: kept from token to token, and made anew or let go of whenever a layer is not what it was."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize, prune
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from support.instruction_sets import available, needs_native
from winnow.kernels import native
from winnow.models import quantized
from winnow.models.compiled import CompiledLinear
from winnow.models.int4 import Int4Linear
from winnow.models.int8 import Int8Linear
from winnow.models.norms import CompiledRMSNorm
from winnow.models.planned import Planned

pytestmark = [pytest.mark.usefixtures("one_thread"), needs_native]
WIDTH = 64


def plain_linear(bias: bool = True) -> nn.Linear:
    return nn.Linear(WIDTH, WIDTH, bias).bfloat16().requires_grad_(False)


LAYERS = {
    "linear": lambda: CompiledLinear.of(plain_linear()),
    "linear without a bias": lambda: CompiledLinear.of(plain_linear(bias=False)),
    "8 bits": lambda: Int8Linear.of(plain_linear()),
    "4 bits": lambda: Int4Linear.of(plain_linear()),
    "norm": lambda: CompiledRMSNorm(LlamaRMSNorm(WIDTH).bfloat16().requires_grad_(False)),
}


@pytest.fixture(params=LAYERS.values(), ids=LAYERS)
def layer(request) -> Planned:
    return request.param()


def token() -> torch.Tensor:
    return torch.randn(1, 1, WIDTH).bfloat16()


def numbers_of(layer: Planned) -> str:
    """The name of the parameter that holds the layer's weight."""
    return next(name for name in layer._parameters if name != "bias")


class _Kept(torch.Tensor):
    """A parameter as libraries make them."""


def as_of_a_library(layer: Planned, name: str) -> None:
    layer._parameters[name] = layer._parameters[name].detach().as_subclass(_Kept)


def under_another_name(layer: Planned, name: str) -> None:
    layer._parameters[f"{name}_orig"] = layer._parameters.pop(name)


def elsewhere(layer: Planned, name: str) -> None:
    layer._parameters[name].data = layer._parameters[name].data.clone()


def in_fewer_rows(layer: Planned, name: str) -> None:
    layer._parameters[name].data = layer._parameters[name].data[: WIDTH // 2]


CHANGES = {
    "a tensor of a library": as_of_a_library,
    "another name": under_another_name,
    "other memory": elsewhere,
    "fewer rows of the same memory": in_fewer_rows,
    "another dtype": lambda layer, _: layer.float(),
    "another device": lambda layer, _: layer.to("meta"),
}


@torch.no_grad()
def test_a_plan_serves_as_long_as_the_layer_is_what_it_was(layer):
    inputs = token()
    plan = layer.plan_for(inputs)
    assert plan is not None
    assert layer.plan_for(token()) is plan
    layer._parameters[numbers_of(layer)].mul_(2)
    assert layer.plan_for(inputs) is plan


@torch.no_grad()
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_plan_does_not_outlive_its_parameters(change, layer):
    before = layer.plan_for(token())
    change(layer, numbers_of(layer))
    assert layer.plan_for(token()) is not before
    assert layer._plan is not before


@torch.no_grad()
@pytest.mark.parametrize("name", ["bias", "scales"])
@pytest.mark.parametrize("kind", [Int4Linear, Int8Linear])
def test_all_parameters_count(kind, name):
    layer, inputs = kind.of(plain_linear()), token()
    if not layer.is_compiled():
        pytest.skip("torch packs such weights in another order here")
    before = layer.plan_for(inputs)
    expected = before.run(inputs)
    setattr(layer, name, nn.Parameter(layer.get_parameter(name) * 2, requires_grad=False))
    after = layer.plan_for(inputs)
    assert after is not before
    assert not torch.equal(after.run(inputs), expected)
    layer.bias = None
    assert layer.plan_for(inputs) not in (before, after)


@torch.no_grad()
@pytest.mark.parametrize("name", ["linear", "linear without a bias", "norm"])
def test_pruned_and_parametrized_layers_have_no_plan(name):
    changed = LAYERS[name](), LAYERS[name]()
    for each in changed:
        assert each.plan_for(token()) is not None
    prune.random_unstructured(changed[0], "weight", amount=0.5)
    parametrize.register_parametrization(changed[1], "weight", nn.Identity())
    for each in changed:
        assert each.plan_for(token()) is None
        assert each._plan is None


def test_gradients_autocast_and_other_inputs_get_no_plan(layer):
    plan = layer.plan_for(token())
    assert plan is not None
    assert layer.plan_for(token().requires_grad_()) is None
    assert layer.plan_for(token().float()) is None
    assert layer.plan_for(token().to("meta")) is None
    assert layer.plan_for(token().as_subclass(_Kept)) is None
    with torch.autocast("cpu", torch.bfloat16):
        assert layer.plan_for(token()) is None
    assert layer.plan_for(token()) is plan


def test_a_weight_that_wants_gradients_gets_no_plan():
    layer = CompiledLinear.of(plain_linear())
    plan = layer.plan_for(token())
    layer.weight.requires_grad_()
    assert layer.plan_for(token()) is None
    with torch.no_grad():
        assert layer.plan_for(token()) is plan


@torch.no_grad()
def test_a_plan_serves_in_inference_mode(layer):
    plan = layer.plan_for(token())
    with torch.inference_mode():
        assert layer.plan_for(token()) is plan


LINEAR = {name: made for name, made in LAYERS.items() if name != "norm"}


@torch.no_grad()
@pytest.mark.parametrize("name", LINEAR)
@pytest.mark.parametrize("other", LINEAR)
def test_a_plan_beside_that_of_a_layer_of_the_same_kind(name, other):
    layer, beside = LINEAR[name](), LINEAR[other]()
    plan = beside.plan_for(token())
    expected = layer.plan_for(token()) if type(layer) is type(beside) else None
    if expected is not None and isinstance(layer, quantized.QuantizedLinear) and not layer.is_compiled():
        expected = None
    assert layer.plan_beside(beside, plan) is expected
    assert layer.float().plan_beside(beside, plan) is None


def test_a_weight_that_wants_gradients_gets_no_plan_beside_another():
    layer, beside = LAYERS["linear"](), LAYERS["linear"]()
    layer.weight.requires_grad_()
    assert layer.plan_beside(beside, beside.plan_for(token())) is None
    with torch.no_grad():
        assert layer.plan_beside(beside, beside.plan_for(token())) is layer.plan_for(token())


@torch.no_grad()
@pytest.mark.parametrize("kind", [Int4Linear, Int8Linear])
def test_layers_of_few_bits_ask_once_for_their_kernel(kind, monkeypatch):
    monkeypatch.setattr(quantized, "outruns_torch", lambda: True)
    asked: list[str] = []
    answers = {isa: number % 2 == 0 for number, isa in enumerate(available())}

    def is_compiled(_):
        asked.append(native.isa())
        return answers[asked[-1]]

    monkeypatch.setattr(kind, "is_compiled", is_compiled)
    layer, used = kind.of(plain_linear()), native.isa()
    for isa, answer in answers.items():
        native.select_isa(isa)
        asked.clear()
        assert [layer.fastest_plan(token()) is not None for _ in range(3)] == [answer] * 3
        assert asked == [isa] * (1 if answer else 3)
    native.select_isa(used)


def test_the_instruction_set_in_use_is_told():
    used = native.isa()
    for isa in available():
        native.select_isa(isa)
        assert native.isa() == native.loaded_library().winnow_isa().decode() == isa
    native.select_isa(used)
