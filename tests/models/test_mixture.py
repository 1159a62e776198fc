"""Mixtures whose experts are one call of the compiled kernels: which are, and when."""

from __future__ import annotations

from collections.abc import Iterator
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
from winnow.models import read_experts_directly
from winnow.models.compiled import FEW

pytestmark = [pytest.mark.usefixtures("one_thread"), needs_native]
SIZES = Sizes(width=24, inner=40)
GATED = Form(is_transposed=False, has_bias=True, has_gate=True)
BY_SILU = {"mixtral": True, "qwen3_moe": True, "granitemoe": True, "deepseek_v3": True, "gpt_oss": False}


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
@pytest.mark.parametrize("family", BY_SILU)
def test_families_that_gate_by_silu_take_one_call(
    family: str, calls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject, "outruns_torch", lambda: True)
    model = build(family)
    read_experts_directly(model)
    model(prompt(2, 3))
    assert bool(calls) == BY_SILU[family]
    assert set(calls) <= {6}


@pytest.mark.parametrize("tokens", [0, 1, FEW, FEW + 1])
def test_few_tokens_take_it(tokens: int, calls: list[int]) -> None:
    check(made(GATED, SIZES, torch.float32), tokens)
    assert calls == ([tokens] if 0 < tokens <= FEW else [])


def test_experts_without_a_gate_do_not(calls: list[int]) -> None:
    check(made(GATED._replace(has_gate=False), SIZES, torch.float32))
    assert calls == []


@pytest.mark.parametrize(
    "activation",
    [nn.functional.gelu, nn.ReLU(), lambda x: nn.functional.silu(x.clamp(max=7))],
    ids=["gelu", "relu", "silu with a limit"],
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
