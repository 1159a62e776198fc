"""Mixtures whose experts are one call of the compiled kernels: which are, and when."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from support.experts import CHOSEN, Form, Sizes, made, oracle, routed
from support.families import build, prompt
from support.instruction_sets import needs_native
from winnow.kernels.mixture import MixturePlan
from winnow.models import experts as subject
from winnow.models import mixture, quantize_weights, quantized, quantized_stack, read_experts_directly
from winnow.models.compiled import FEW
from winnow.models.quantized_experts import QuantizedExperts

pytestmark = [pytest.mark.usefixtures("one_thread"), needs_native]
SIZES = Sizes(width=24, inner=40)
GATED = Form(is_transposed=False, has_bias=True, has_gate=True)
FAMILIES = ("mixtral", "qwen3_moe", "granitemoe", "deepseek_v3", "gpt_oss")


@pytest.fixture
def calls() -> Iterator[list[int]]:
    """Tokens of every call."""
    seen, run = [], MixturePlan.run

    def counted(plan: MixturePlan, inputs: Tensor, *given: Tensor) -> Tensor:
        seen.append(len(inputs))
        return run(plan, inputs, *given)

    with patch.object(MixturePlan, "run", counted):
        yield seen


plain = ALL_EXPERTS_FUNCTIONS["grouped_mm"]
"""The function of transformers' own."""


def check(experts: Any, tokens: int = 3) -> None:
    """Experts compute what the oracle does."""
    given = routed(tokens, SIZES.width, torch.float32)
    expected = oracle(experts, *given)
    torch.testing.assert_close(subject.experts_forward(experts, *given).double(), expected, rtol=1e-4, atol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("family", FAMILIES)
def test_experts_of_models_take_one_call(family: str, calls: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "outruns_torch", lambda: True)
    model, ids = build(family), prompt(2, 3)
    expected = model(ids).logits
    read_experts_directly(model)
    torch.testing.assert_close(model(ids).logits, expected, rtol=1e-3, atol=1e-4)
    assert set(calls) == {6}


@torch.no_grad()
@pytest.mark.parametrize("weights", ["bfloat16", "int8", "int4"])
def test_gpt_oss_computes_what_it_did_with_weights_of_any_kind(
    weights: str, calls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (subject, quantized, quantized_stack):
        monkeypatch.setattr(module, "outruns_torch", lambda: True)
    model, ids = build("gpt_oss", intermediate_size=64).bfloat16(), prompt(2, 3)
    if weights != "bfloat16":
        quantize_weights(model, weights)
    with patch.object(mixture, "_plan", lambda *_: None):
        expected = model(ids).logits.float()
    assert calls == []
    read_experts_directly(model)
    found = model(ids).logits.float()
    assert float((found - expected).norm()) < 0.02 * float(expected.norm())
    # Where torch packs weights of 4 bits in another order than the kernels read, it multiplies them.
    compiled = all(each.enter[0].is_compiled() for each in model.modules() if isinstance(each, QuantizedExperts))
    assert set(calls) == ({6} if compiled else set())


@pytest.mark.parametrize("tokens", [0, 1, FEW, FEW + 1])
def test_few_tokens_take_it(tokens: int, calls: list[int]) -> None:
    check(made(GATED, SIZES, torch.float32), tokens)
    assert calls == ([tokens] if 0 < tokens <= FEW else [])


def test_experts_without_a_gate_do_not(calls: list[int]) -> None:
    check(made(GATED._replace(has_gate=False), SIZES, torch.float32))
    assert calls == []


@pytest.mark.parametrize(
    "activation",
    [nn.functional.mish, nn.ReLU(), lambda x: nn.functional.silu(x.clamp(max=7))],
    ids=["mish", "relu", "silu with a limit"],
)
def test_other_gates_are_the_models_own(activation: Any, calls: list[int]) -> None:
    experts: Any = made(GATED, SIZES, torch.float32)
    given = routed(3, SIZES.width, torch.float32)
    subject.experts_forward(experts, *given)
    assert calls == [3]
    experts.act_fn = activation
    found, expected = (function(experts, *given) for function in (subject.experts_forward, plain))
    assert calls == [3]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def interleaved(experts: Any, gated: Tensor) -> Tensor:
    gates, ups = gated[:, ::2], gated[:, 1::2]
    found: Tensor = experts.act_fn(gates) * ups
    return found


def with_limit(experts: Any, gated: Tensor) -> Tensor:
    gates, ups = gated.chunk(2, 1)
    found: Tensor = experts.act_fn(gates.clamp(max=experts.limit)) * ups.clamp(-experts.limit, experts.limit)
    return found


def test_numbers_of_gate_and_layer_may_take_turns(calls: list[int]) -> None:
    experts: Any = made(GATED, SIZES, torch.float32)
    given = routed(3, SIZES.width, torch.float32)
    expected = subject.experts_forward(experts, *given)
    for parameter in (experts.gate_up_proj, experts.gate_up_proj_bias):
        halves = parameter.data.unflatten(1, (2, SIZES.inner))
        parameter.data = halves.transpose(1, 2).flatten(1, 2).contiguous()
    experts._apply_gate = partial(interleaved, experts)
    subject.experts_forward(experts, *given)
    assert calls == [3]  # the module says that there are halves
    experts.is_concatenated = False
    mixture._KNOWN.pop(experts)
    torch.testing.assert_close(subject.experts_forward(experts, *given), expected, rtol=1e-5, atol=1e-5)
    assert calls == [3, 3]


def test_a_gate_is_tried_again_for_other_settings(calls: list[int]) -> None:
    experts: Any = made(GATED, SIZES, torch.float32)
    given = routed(3, SIZES.width, torch.float32)
    experts._apply_gate = partial(with_limit, experts)
    for limit in (1.5, 4.0):
        experts.limit = limit
        found, expected = (function(experts, *given) for function in (subject.experts_forward, plain))
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert calls == [3, 3]


def test_an_activation_that_somebody_watches_is_called(calls: list[int]) -> None:
    experts: Any = made(GATED, SIZES, torch.float32)
    experts.act_fn, seen = nn.SiLU(), []
    check(experts)
    handle = experts.act_fn.register_forward_hook(lambda *_: seen.append(True))
    check(experts)
    handle.remove()
    check(experts)
    assert seen == [True]
    assert calls == [3, 3]


def test_gradients_of_weights_reach_the_router(calls: list[int]) -> None:
    experts = made(GATED, SIZES, torch.float32)
    tokens, chosen, weights = routed(3, SIZES.width, torch.float32)
    weights = weights.clone().requires_grad_()
    subject.experts_forward(experts, tokens, chosen, weights).square().sum().backward()
    assert weights.grad is not None
    assert bool(weights.grad[:, :CHOSEN].all())
    assert calls == []
