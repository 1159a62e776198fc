"""Queries, keys and values of real layers: the bundled model on a document, random Llamas on random tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

import winnow
from random_models import random_llama
from winnow import Method
from winnow.allocate import Uniform
from winnow.budget import Budget
from winnow.score import Scorer
from winnow.store import Dense
from winnow.view import LayerView

ASKING = 64
"""Last tokens of a prompt, whose queries attend to the packed rest."""
OUTLIERS = 8.0
"""Key channels of large models hold a few that are several times larger than the others (KIVI, Fig. 2)."""


class Layer(NamedTuple):
    """One layer, split into a prompt that is packed and queries that come after it."""

    view: LayerView
    asking: Tensor
    """[Hq, ASKING, D]"""


@dataclass(frozen=True)
class _Seeing(Scorer):
    """Keeps the views of all layers."""

    seen: list[LayerView] = field(default_factory=list, compare=False)

    def queries_needed(self, length: int) -> int:
        return length

    def __call__(self, view: LayerView) -> Tensor:
        self.seen.append(
            view._replace(queries=view.queries.clone(), keys=view.keys.clone(), values=view.values.clone())
        )
        return torch.zeros(view.keys.shape[:2])

    def __hash__(self) -> int:
        return id(self)


@torch.no_grad()
def layers_of(model: PreTrainedModel, ids: Tensor) -> Iterator[Layer]:
    """Every layer of a prompt [1, N]."""
    seeing = _Seeing()
    winnow.compress(model, ids, Method("seeing", seeing, Uniform(), Dense(), Budget.parse(1)))
    for view in seeing.seen:
        split = view.keys.shape[1] - ASKING
        before = view._replace(
            queries=view.queries[:, :split], keys=view.keys[:, :split], values=view.values[:, :split]
        )
        yield Layer(before, view.queries[:, split:])


def llama_layers(outliers: bool) -> PreTrainedModel:
    """Two random layers of Llama-3-8B's attention shape; with outliers, four key channels of every head stand out."""
    model = random_llama(
        layers=2,
        query_heads=32,
        kv_heads=8,
        head_dim=128,
        hidden=1024,
        intermediate=256,
        vocabulary=512,
        spread=0.08,
    ).to(torch.bfloat16)
    if outliers:
        for layer in model.model.layers:
            weight = layer.self_attn.k_proj.weight.data.view(8, 128, -1)
            # Pairs that rotate together, slowly, so that they stay outliers at every position.
            weight[:, [60, 62, 124, 126]] *= OUTLIERS
    model.set_attn_implementation("winnow")
    return model
