"""Routers by the compiled kernels: what they compute, and when torch multiplies."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from support.experts import FAMILIES
from support.families import build, prompt
from support.instruction_sets import needs_native
from support.stand_ins import assert_files_know_the_model, assert_same_logits, used_copies
from winnow.kernels.linear import LinearPlan
from winnow.models import routers as subject
from winnow.models.compiled import FEW
from winnow.models.routers import CompiledRouter, route_directly

pytestmark = [pytest.mark.usefixtures("one_thread", "everywhere"), needs_native]


@pytest.fixture
def everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the processor, its kernels serve routers."""
    monkeypatch.setattr(subject, "outruns_torch", lambda: True)


@pytest.fixture
def products() -> Iterator[list[int]]:
    """Rows of every product by the kernels."""
    seen, run = [], LinearPlan.run

    def counted(plan: LinearPlan, inputs: Tensor) -> Tensor:
        seen.append(inputs.numel() // plan.inputs)
        return run(plan, inputs)

    with patch.object(LinearPlan, "run", counted):
        yield seen


def routers_of(model: nn.Module) -> list[CompiledRouter]:
    return [each for each in model.modules() if isinstance(each, CompiledRouter)]


def routed(model: PreTrainedModel) -> PreTrainedModel:
    """The model, once its routers are Winnow's."""
    route_directly(model)
    assert routers_of(model)
    return model


@pytest.mark.parametrize("family", FAMILIES)
def test_models_compute_what_they_did(family: str, products: list[int]) -> None:
    plain = build(family)
    model = routed(deepcopy(plain))
    assert_same_logits(model, plain)
    assert products == [18] * len(routers_of(model))


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_products_of_float64(family: str, dtype: torch.dtype) -> None:
    model = routed(build(family).to(dtype))
    router = routers_of(model)[0]
    inputs = torch.randn(3, router.weight.shape[1], generator=torch.Generator().manual_seed(0)).to(dtype)
    expected = inputs.double() @ router.weight.double().mT
    bias = router._parameters.get("bias")
    found = router.product(inputs, router.weight, bias)
    assert found is not None
    expected = expected if bias is None else expected + bias.double()
    room = {torch.float32: 1e-6, torch.bfloat16: 1e-2, torch.float16: 1e-3}[dtype]
    torch.testing.assert_close(found.double(), expected, rtol=room, atol=room * float(expected.abs().max()))


def test_routers_are_of_the_class_that_they_were() -> None:
    """Its logits are told to whoever asks the model for them, before and after."""
    plain = build("qwen3_moe")
    model = routed(deepcopy(plain))
    kind = next(type(each) for each in plain.modules() if type(each).__name__.endswith("Router"))
    assert all(isinstance(each, kind) and type(each).__name__ == kind.__name__ for each in routers_of(model))
    with torch.no_grad():
        found, expected = (each(prompt(1, 5), output_router_logits=True).router_logits for each in (model, plain))
    assert len(found) == len(expected) == len(routers_of(model))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_copies_and_files_are_those_of_the_model(tmp_path: Path) -> None:
    plain = build("mixtral")
    model = routed(deepcopy(plain))
    for copied in used_copies(model):
        assert len(routers_of(copied)) == len(routers_of(model))
        assert_same_logits(copied, plain)
    assert_files_know_the_model(model, plain, tmp_path)


def test_a_second_time_changes_nothing() -> None:
    model = routed(build("mixtral"))
    before = routers_of(model)
    route_directly(model)
    assert all(one is other for one, other in zip(routers_of(model), before, strict=True))


@torch.no_grad()
def test_many_tokens_are_torchs(products: list[int]) -> None:
    plain = build("mixtral")
    model = routed(deepcopy(plain))
    ids = prompt(1, FEW + 1)
    assert torch.equal(model(ids).logits, plain(ids).logits)
    assert products == []


@pytest.mark.parametrize("follow", ["gradients", "autocast"])
def test_what_is_followed_is_torchs(follow: str, products: list[int]) -> None:
    model = routed(build("mixtral"))
    with torch.autocast("cpu", torch.bfloat16, enabled=follow == "autocast"), torch.set_grad_enabled(True):
        model.train()
        for parameter in model.parameters():
            parameter.requires_grad_(follow == "gradients")
        outputs = model(prompt(1, 3)).logits
    assert products == []
    if follow == "gradients":
        outputs.square().sum().backward()
        assert all(each.weight.grad is not None and each.weight.grad.any() for each in routers_of(model))


@torch.no_grad()
def test_parameters_may_change_and_move() -> None:
    plain = build("gpt_oss")
    model = routed(deepcopy(plain))
    assert_same_logits(model, plain)
    for each in (model, plain):
        for name, parameter in each.named_parameters():
            if "router" in name:
                parameter.data = parameter.data.clone() * 3
    assert_same_logits(model, plain)


@torch.no_grad()
def test_hooks_see_what_they_did() -> None:
    model, seen = build("mixtral"), []
    router = next(each for each in model.modules() if type(each).__name__.endswith("Router"))
    handle = router.register_forward_hook(lambda module, *_: seen.append(type(module).__name__))
    routed(model)(prompt(1, 3))
    handle.remove()
    model(prompt(1, 3))
    assert seen == [type(router).__name__]


def test_a_router_with_a_forward_of_its_own_stays() -> None:
    model = build("mixtral")
    routers = [each for each in model.modules() if type(each).__name__.endswith("Router")]
    routers[0].forward = routers[0].forward
    route_directly(model)
    assert len(routers_of(model)) == len(routers) - 1
    assert not isinstance(routers[0], CompiledRouter)


def test_models_without_routers_stay() -> None:
    model = build("llama")
    before = [type(each) for each in model.modules()]
    route_directly(model)
    assert [type(each) for each in model.modules()] == before
