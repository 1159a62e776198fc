"""Modules of experts in every form that transformers has, what they are given, and what they compute in float64."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers.integrations.moe import use_experts_implementation

EXPERTS, CHOSEN = 5, 2
FAMILIES = ("mixtral", "qwen2_moe", "qwen3_moe", "granitemoe", "gpt_oss", "qwen3_next", "deepseek_v2", "deepseek_v3")


class Sizes(NamedTuple):
    """Channels of a token, and between the layers of an expert."""

    width: int
    inner: int


class Form(NamedTuple):
    """Properties by which a module of experts describes itself to transformers."""

    is_transposed: bool
    has_bias: bool
    has_gate: bool


FORMS = [Form(*each) for each in product((False, True), repeat=3)]


def made(form: Form, sizes: Sizes, dtype: torch.dtype) -> nn.Module:
    """Random experts of a form."""

    @use_experts_implementation(**form._asdict())
    class Experts(nn.Module):
        def __init__(self, config: Any) -> None:
            super().__init__()
            self.num_experts, self.act_fn = EXPERTS, nn.functional.silu
            width, inner = sizes
            enter = "gate_up_proj" if form.has_gate else "up_proj"
            for name, outputs, inputs in ((enter, inner * (1 + form.has_gate), width), ("down_proj", width, inner)):
                shape = (inputs, outputs) if form.is_transposed else (outputs, inputs)
                self.register_parameter(name, nn.Parameter(torch.randn(EXPERTS, *shape) / 4))
                if form.has_bias:
                    self.register_parameter(f"{name}_bias", nn.Parameter(torch.randn(EXPERTS, outputs)))

        def forward(self, *_: Tensor) -> Tensor:
            raise AssertionError("the implementation is chosen by name")

    torch.manual_seed(0)
    found: nn.Module = Experts(SimpleNamespace(_experts_implementation="grouped_mm")).to(dtype).requires_grad_(False)
    return found


def routed(tokens: int, width: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens, and two experts of each; nobody chose the last but one."""
    draw = torch.Generator().manual_seed(1)
    scores = torch.rand(tokens, EXPERTS, generator=draw)
    scores[:, -2] = -1
    return torch.randn(tokens, width, generator=draw).to(dtype), scores.topk(CHOSEN).indices, scores[:, :CHOSEN]


def oracle(
    experts: Any, tokens: Tensor, chosen: Tensor, weights: Tensor, finish: Callable[[Tensor], Tensor] = lambda row: row
) -> Tensor:
    """Each token by each of its experts in float64, one after another.

    finish: what is done with an expert's outputs before they are weighted.
    """

    def layer(name: str, expert: int, row: Tensor) -> Tensor:
        weight = getattr(experts, name)[expert].double()
        found = row @ (weight if experts.is_transposed else weight.mT)
        return found + getattr(experts, f"{name}_bias")[expert].double() if experts.has_bias else found

    outputs = torch.zeros(tokens.shape, dtype=torch.float64)
    for token, place in product(range(len(tokens)), range(CHOSEN)):
        expert = int(chosen[token, place])
        inner = layer("gate_up_proj" if experts.has_gate else "up_proj", expert, tokens[token].double())
        if experts.has_gate:
            gate, up = inner.chunk(2)
            inner = nn.functional.silu(gate) * up
        else:
            inner = nn.functional.silu(inner)
        outputs[token] += weights[token, place].double() * finish(layer("down_proj", expert, inner))
    return outputs
