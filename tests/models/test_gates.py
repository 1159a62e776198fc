"""Gates that are found by trying: those that the kernels know, and functions that are none."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from transformers.activations import ACT2FN

from support.gates import GATES
from winnow.kernels.gate import SILU, Gate
from winnow.models.gates import Gating, gate_of

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def by_gpt_oss(gates: Tensor, ups: Tensor) -> Tensor:
    kept = gates.clamp(max=7.0)
    return (ups.clamp(-7.0, 7.0) + 1) * (kept * torch.sigmoid(kept * 1.702))


def by_deepseek(gates: Tensor, ups: Tensor) -> Tensor:
    return functional.silu(gates.clamp(max=10.0)) * ups.clamp(-10.0, 10.0)


def in_float32(gates: Tensor, ups: Tensor) -> Tensor:
    return (functional.silu(gates.float()) * ups.float()).to(gates.dtype)


KNOWN: dict[str, tuple[Gating, Gate]] = {
    "silu": (lambda gates, ups: functional.silu(gates) * ups, GATES["silu"]),
    "silu in float32": (in_float32, GATES["silu"]),
    "gelu": (lambda gates, ups: functional.gelu(gates) * ups, GATES["gelu"]),
    "gelu by tanh": (lambda gates, ups: functional.gelu(gates, approximate="tanh") * ups, GATES["gelu by tanh"]),
    "gelu by tanh, written out": (lambda gates, ups: ACT2FN["gelu_new"](gates) * ups, GATES["gelu by tanh"]),
    "gelu by a sigmoid": (lambda gates, ups: ACT2FN["quick_gelu"](gates) * ups, Gate(alpha=1.702)),
    "GPT-OSS": (by_gpt_oss, GATES["GPT-OSS"]),
    "DeepSeek 4": (by_deepseek, GATES["DeepSeek 4"]),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("outputs", [1, 40, 3000])
@pytest.mark.parametrize(("gating", "gate"), KNOWN.values(), ids=KNOWN)
def test_gates_are_found_with_their_numbers(gating: Gating, gate: Gate, outputs: int, dtype: torch.dtype) -> None:
    found = gate_of(gating, outputs, dtype)
    assert found is not None
    assert found.activation == gate.activation
    assert found[1:] == pytest.approx(gate[1:], rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("gate", GATES.values(), ids=GATES)
def test_definitions_are_found(gate: Gate) -> None:
    found = gate_of(gate.gated, 64, torch.bfloat16)
    if gate.limit < 1:
        assert found is None  # a gate of 1 is beyond it
    else:
        assert found == pytest.approx(gate) if gate.activation == "swish" else found == gate


OTHERS: dict[str, Gating] = {
    "relu": lambda gates, ups: functional.relu(gates) * ups,
    "the square of relu": lambda gates, ups: functional.relu(gates).square() * ups,
    "mish": lambda gates, ups: functional.mish(gates) * ups,
    "sigmoid": lambda gates, ups: torch.sigmoid(gates) * ups,
    "the other way round": lambda gates, ups: functional.silu(ups) * gates,
    "the square of what is gated": lambda gates, ups: functional.silu(gates) * ups**2,
    "a limit for the gate alone": lambda gates, ups: functional.silu(gates.clamp(max=7)) * ups,
    "a limit for what is gated alone": lambda gates, ups: functional.silu(gates) * ups.clamp(-7, 7),
    "a limit after the activation": lambda gates, ups: functional.silu(gates).clamp(max=7) * ups.clamp(-7, 7),
    "a gate that is added": lambda gates, ups: functional.silu(gates) + ups,
    "half as many": lambda gates, ups: functional.silu(gates)[:, ::2] * ups[:, ::2],
    "another dtype": lambda gates, ups: functional.silu(gates).float() * ups.float(),
    "none at all": lambda gates, ups: ups,
    "no numbers": lambda gates, ups: gates * torch.nan,
}


@pytest.mark.parametrize("gating", OTHERS.values(), ids=OTHERS)
def test_other_functions_are_none(gating: Gating) -> None:
    assert gate_of(gating, 40, torch.bfloat16) is None


def test_gradients_are_not_followed() -> None:
    scale = torch.ones((), requires_grad=True)
    assert gate_of(lambda gates, ups: functional.silu(gates) * ups * scale, 40, torch.float32) == pytest.approx(SILU)
