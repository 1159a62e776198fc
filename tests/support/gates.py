"""Gates of every activation, and what they compute in float64."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from winnow.kernels.gate import SILU, Gate

GATES = {
    "silu": SILU,
    "gelu by tanh": Gate("gelu tanh"),
    "gelu": Gate("gelu"),
    "GPT-OSS": Gate(alpha=1.702, limit=7.0, offset=1.0),
    "DeepSeek 4": Gate(limit=10.0),
    "all there is": Gate("gelu tanh", limit=0.75, offset=-0.5),
}


def activated(gate: Gate, gates: Tensor) -> Tensor:
    """The activation of a gate's outputs, in float64."""
    x = gates.double()
    x = torch.where(x > gate.limit, gate.limit, x)
    if gate.activation == "swish":
        return x / (1 + torch.exp(-gate.alpha * x))
    if gate.activation == "gelu":
        return x * torch.erfc(-x / math.sqrt(2)) / 2
    # (1 + tanh(u)) / 2 keeps its digits where tanh is near -1.
    u = math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)
    return x / (1 + torch.exp(-2 * u))


def met(gate: Gate, ups: Tensor) -> Tensor:
    """The numbers that activations of a gate multiply, in float64."""
    x = ups.double()
    x = torch.where(x > gate.limit, gate.limit, x)
    return torch.where(x < -gate.limit, -gate.limit, x) + gate.offset


def gated(gate: Gate, gates: Tensor, ups: Tensor) -> Tensor:
    """A gate's outputs and those that it gates, of one dtype -> gated, with a gate's two roundings to that dtype."""
    return (activated(gate, gates).to(gates.dtype).double() * met(gate, ups)).to(gates.dtype)
