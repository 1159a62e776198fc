"""Decode attention as one opaque operator, so that graph capture sees a single call."""

from __future__ import annotations

import itertools
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from winnow.kernels.interface import AttentionSpec, DecodePlan

_library = torch.library.Library("winnow", "DEF")
_library.define("attend(Tensor query, int plan, int value_dim) -> Tensor")

_numbers = itertools.count()
_plans: WeakValueDictionary[int, OpaquePlan] = WeakValueDictionary()


class OpaquePlan:
    """A decode plan under a number, which is all that an operator's signature can carry."""

    def __init__(self, plan: DecodePlan, value_dim: int) -> None:
        self.plan = plan
        self.value_dim = value_dim
        self.number = next(_numbers)
        _plans[self.number] = self

    def attends_as(self, spec: AttentionSpec) -> bool:
        """Whether the plan was made for this scaling, soft-capping and these sinks (the model's own tensor)."""
        mine = self.plan.spec
        return (mine.scaling, mine.softcap) == (spec.scaling, spec.softcap) and mine.sinks is spec.sinks


def attend_compressed(query: Tensor, plan: OpaquePlan) -> Tensor:
    """Attention of query [R, Hq, Q, D] over prefix and tail as planned; [R, Q, Hq, Dv]."""
    output: Tensor = torch.ops.winnow.attend(query, plan.number, plan.value_dim)
    return output


def _attend(query: Tensor, plan: int, value_dim: int) -> Tensor:
    return _plans[plan].plan.run(query)


def _attend_shape(query: Tensor, plan: int, value_dim: int) -> Tensor:
    rows, heads, queries, _ = query.shape
    return query.new_empty(rows, queries, heads, value_dim)


_library.impl("attend", _attend, "CPU")
_library.impl("attend", _attend, "CUDA")
torch.library.register_fake("winnow::attend", _attend_shape, lib=_library)
