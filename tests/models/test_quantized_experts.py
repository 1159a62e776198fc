"""Experts of 8 and 4 bits: against float64 by the weights that they tell, in every form, and in whole models."""

from __future__ import annotations

from copy import deepcopy
from functools import partial
from itertools import chain
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune

from support.experts import EXPERTS, FAMILIES, FORMS, Form, Sizes, made, oracle, routed
from support.families import build, prompt
from support.stand_ins import used_copies
from winnow.cache.fingerprint import ModelFingerprint
from winnow.kernels import native
from winnow.kernels.linear import outruns_torch
from winnow.models import quantize_weights, quantized, quantized_stack, weights_of
from winnow.models.int4 import Int4Linear
from winnow.models.int8 import Int8Linear
from winnow.models.quantized_experts import QuantizedExperts

pytestmark = pytest.mark.usefixtures("one_thread")
SIZES = Sizes(width=64, inner=128)
BITS = {"int8": 8.5, "int4": 5.5}
"""Bits a value, the scales included, at the most."""


def quantized_as(weights: str, experts: nn.Module) -> Any:
    """The experts in so many bits; these stay as they are."""
    model: Any = nn.Module()
    model.experts = experts
    model.get_output_embeddings = model.get_input_embeddings = lambda: None
    quantize_weights(model, weights)
    return model.experts


def as_told(experts: Any) -> nn.Module:
    """Experts with plain parameters, whose values are those that the quantized ones tell."""
    form = Form(experts.is_transposed, experts.has_bias, experts.has_gate)
    plain = made(form, SIZES, torch.float32)
    for name, layers in (("gate_up_proj" if form.has_gate else "up_proj", experts.enter), ("down_proj", experts.leave)):
        weight = torch.stack([layer.weight.float() for layer in layers])
        plain.get_parameter(name).data = weight.mT if form.is_transposed else weight
        if form.has_bias:
            plain.get_parameter(f"{name}_bias").data = torch.stack([layer.bias.float() for layer in layers])
    return plain


@pytest.mark.parametrize("tokens", [0, 1, 7, 200])  # of 200 more choose an expert than count as few
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("weights", BITS)
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_experts_of_every_form_compute_with_the_weights_that_they_tell(
    form: Form, weights: str, dtype: torch.dtype, tokens: int
) -> None:
    found, given = quantized_as(weights, made(form, SIZES, dtype)), routed(tokens, SIZES.width, dtype)
    expected = oracle(as_told(found), *given)
    room = (1e-5 if dtype == torch.float32 else 2e-2) * float(expected.abs().max()) if tokens else 0
    for compiled in {outruns_torch(), False}:
        as_if = {"outruns_torch": lambda compiled=compiled: compiled}
        with patch.multiple(quantized, **as_if), patch.multiple(quantized_stack, **as_if), torch.no_grad():
            outputs = found(*given)
        assert outputs.dtype == dtype
        torch.testing.assert_close(outputs.double(), expected, rtol=0, atol=room)


@pytest.mark.parametrize("weights", BITS)
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_every_expert_is_rounded_as_a_linear_layer_is(form: Form, weights: str) -> None:
    plain = made(form, SIZES, torch.bfloat16)
    found = quantized_as(weights, plain)
    kind = Int8Linear if weights == "int8" else Int4Linear
    for expert in range(EXPERTS):
        weight = plain.get_parameter("down_proj")[expert]
        layer = nn.Linear(SIZES.inner, SIZES.width, dtype=torch.bfloat16)
        layer.weight.data = weight.mT if form.is_transposed else weight
        assert torch.equal(found.leave[expert].weight, kind.of(layer).weight)


@pytest.mark.parametrize("weights", BITS)
def test_weights_are_gone_from_memory(weights: str) -> None:
    plain = made(FORMS[1], SIZES, torch.bfloat16)
    values = sum(each.numel() for each in plain.parameters())
    found = quantized_as(weights, plain)
    assert sum(each.nbytes for each in found.parameters()) < values * BITS[weights] / 8
    held = {each.untyped_storage().data_ptr() for each in found.parameters()}
    assert held.isdisjoint(each.untyped_storage().data_ptr() for each in plain.parameters())


def test_layers_that_4_bits_do_not_fit_get_8() -> None:
    found = quantized_as("int4", made(FORMS[1], Sizes(width=64, inner=48), torch.bfloat16))
    assert {type(each) for each in chain(found.enter, found.leave)} == {Int8Linear}  # outputs of 96, inputs of 48


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("weights", BITS)
@torch.no_grad()
def test_models_are_near_what_they_were(family: str, weights: str) -> None:
    plain = build(family)
    model = deepcopy(plain)
    quantize_weights(model, weights)
    assert any(isinstance(each, QuantizedExperts) for each in model.modules())
    assert not any("gate_up_proj" in name.split(".")[-1] for name, _ in model.named_parameters())
    assert weights_of(model) == weights
    found, expected = model(prompt(2, 9)).logits, plain(prompt(2, 9)).logits
    error = (found - expected).norm() / expected.norm()
    assert error < {"int8": 0.05, "int4": 0.4}[weights]


@torch.no_grad()
def test_copies_compute_the_same() -> None:
    model = build("gpt_oss")
    quantize_weights(model, "int8")
    expected = model(prompt(1, 5)).logits
    for copied in used_copies(model):
        assert torch.equal(copied(prompt(1, 5)).logits, expected)


@torch.no_grad()
def test_hooks_stay() -> None:
    model, seen = build("qwen3_moe"), []
    where = next(each for each in model.modules() if "is_concatenated" in vars(each))
    handle = where.register_forward_hook(lambda module, *_: seen.append(type(module)))
    quantize_weights(model, "int8")
    model(prompt(1, 3))
    handle.remove()
    model(prompt(1, 3))
    assert seen == [QuantizedExperts]


@torch.no_grad()
@pytest.mark.parametrize("name", ["scales", "bias"])
def test_layers_follow_parameters_that_change(name: str) -> None:
    """In place, by others in their place, and in another dtype; and while somebody computes one anew."""
    experts = quantized_as("int8", made(FORMS[3], SIZES, torch.bfloat16))
    tokens = routed(5, SIZES.width, torch.bfloat16)

    def check(given: tuple[Tensor, ...] = tokens) -> None:
        found, expected = experts(*given), oracle(as_told(experts), *given)
        torch.testing.assert_close(found.double(), expected, rtol=0, atol=2e-2 * float(expected.abs().max()))

    with patch.object(quantized_stack, "outruns_torch", lambda: native.library() is not None):
        check()
        experts.enter.get_parameter(name).mul_(2)
        check()
        setattr(experts.enter, name, nn.Parameter(experts.enter.get_parameter(name) / 4, requires_grad=False))
        check()
        prune.l1_unstructured(experts.enter, name, amount=0.3)
        check()
        prune.remove(experts.enter, name)
        check()
        experts.float()
        check((tokens[0].float(), *tokens[1:]))


@pytest.mark.parametrize("name", ["scales", "bias"])
def test_gradients_reach_parameters_that_want_them(name: str) -> None:
    experts = quantized_as("int4", made(FORMS[3], SIZES, torch.float32))
    experts.enter.get_parameter(name).requires_grad_()
    experts(*routed(5, SIZES.width, torch.float32)).square().sum().backward()
    gradient = experts.enter.get_parameter(name).grad
    assert gradient is not None
    assert [bool(each.any()) for each in gradient] == [True, True, True, False, True]  # nobody chose one


def test_there_are_as_many_layers_as_experts() -> None:
    stack = quantized_as("int8", made(FORMS[1], SIZES, torch.bfloat16)).enter
    assert len(list(stack)) == len(stack) == EXPERTS
    with pytest.raises(IndexError, match="There are 5 experts"):
        stack[EXPERTS]


@pytest.mark.parametrize("change", ["a forward of their own", "pruned", "other devices' experts"])
def test_experts_that_others_compute_stay(change: str) -> None:
    experts: Any = made(FORMS[1], SIZES, torch.float32)
    if change == "pruned":
        prune.l1_unstructured(experts, "gate_up_proj", amount=0.3)
    elif change == "a forward of their own":
        experts.forward = experts.forward
    else:
        experts._is_expert_parallel = True
    assert quantized_as("int8", experts) is experts


@pytest.mark.parametrize("weights", BITS)
def test_gradients_of_tokens_are_those_of_the_weights_that_experts_tell(weights: str) -> None:
    found = quantized_as(weights, made(FORMS[3], SIZES, torch.float32))
    tokens, *chosen = routed(6, SIZES.width, torch.float32)

    def gradient(compute: Any) -> Tensor:
        inputs = tokens.clone().requires_grad_()
        compute(inputs, *chosen).square().sum().backward()
        assert inputs.grad is not None
        return inputs.grad.double()

    expected = gradient(partial(oracle, as_told(found)))
    torch.testing.assert_close(gradient(found), expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))


def test_files_know_the_bits_of_experts() -> None:
    plain = build("qwen3_moe")
    models = {weights: deepcopy(plain) for weights in ("int8", "int4")}
    for weights, model in models.items():
        quantize_weights(model, weights)
    again = deepcopy(plain)
    quantize_weights(again, "int4")
    assert ModelFingerprint.of(again) == ModelFingerprint.of(models["int4"])
    assert ModelFingerprint.of(models["int8"]) not in (ModelFingerprint.of(plain), ModelFingerprint.of(models["int4"]))
