"""Models of any family, and what a scorer and some of their modules see of one prompt."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

import winnow
from support.families import build_any
from support.oracle import full_layers
from winnow.allocate import Uniform
from winnow.budget import Budget
from winnow.composition.method import Method
from winnow.score import Scorer
from winnow.store import Dense
from winnow.view import Extra, LayerView

N = 24
BEFORE = ("q_proj", "q_norm", "q_layernorm")
OUTPUTS = ("o_proj", "out_proj", "dense", "c_proj")


@dataclass(frozen=True)
class Watching(Scorer):
    """Notes what it is shown."""

    seen: list[LayerView] = field(default_factory=list, compare=False)
    asks: Extra = Extra.ROTATION | Extra.OUTPUT_PROJECTION

    @property
    def extras(self) -> Extra:
        return self.asks

    def queries_needed(self, length: int) -> int:
        return length

    def __call__(self, view: LayerView) -> Tensor:
        self.seen.append(view)
        return torch.zeros(view.keys.shape[:2])


class Seen(NamedTuple):
    """One prompt through a model: of every full-attention layer what its scorer and some of its modules saw."""

    views: list[LayerView]
    before: list[dict[str, Tensor]]
    projected: list[tuple[Tensor, Tensor]]


def prepared(model: PreTrainedModel) -> PreTrainedModel:
    """For winnow, and without attention sinks, which leave a repeated token with less the fewer tokens it sees."""
    for name, parameter in model.named_parameters():
        if name.endswith("sinks"):
            parameter.data.fill_(-1e4)
    model.set_attn_implementation("winnow")
    return model


def watching(asks: Extra = Extra.ROTATION | Extra.OUTPUT_PROJECTION) -> tuple[Method, list[LayerView]]:
    scorer = Watching(asks=asks)
    return Method("watching", scorer, Uniform(), Dense(), Budget.parse(5)), scorer.seen


def attentions(model: PreTrainedModel) -> list[nn.Module]:
    full = full_layers(model)
    found = {
        module.layer_idx: module
        for name, module in model.named_modules()
        if "Attention" in type(module).__name__ and getattr(module, "layer_idx", None) in full and "vision" not in name
    }
    return [found[index] for index in full]


def run(model: PreTrainedModel, ids: Tensor) -> Seen:
    method, views = watching()
    cache = winnow.CompressedCache(model, method)
    modules = attentions(model)
    before: list[dict[str, Tensor]] = [{} for _ in modules]
    projected: list[Any] = [None] * len(modules)
    hooks = []
    for index, module in enumerate(modules):
        for name, child in module.named_children():
            if name in BEFORE:
                hooks.append(child.register_forward_hook(_note(before[index], name)))
            if name in OUTPUTS:
                hooks.append(child.register_forward_hook(_note(projected, index)))
    with torch.no_grad():
        model(ids, past_key_values=cache)
    for hook in hooks:
        hook.remove()
    return Seen(views, before, projected)


def _note(target: Any, key: Any) -> Any:
    def note(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        target[key] = output if isinstance(key, str) else (inputs[0], output)

    return note


def watched(name: str) -> PreTrainedModel:
    """A prepared model of any family, `family` its name; biases are not zero, as they are in a new model."""
    made = build_any(name)
    made.family = name
    for parameter_name, parameter in made.named_parameters():
        if parameter_name.endswith("bias") and "norm" not in parameter_name:
            nn.init.normal_(parameter, std=0.1)
    return prepared(made)
