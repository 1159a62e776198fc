"""Checks that parts of methods, which somebody else may have written, give what the contracts ask for.

Numbers are looked at where a part is not winnow's and they lie on the CPU: a GPU is never waited for.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from winnow.allocate import Allocation, Allocator, HeadAllocator, HeadUnion, PlannedAllocator, SlotPlan
from winnow.errors import MethodError
from winnow.score import Refiner, Scorer
from winnow.select import check_scores
from winnow.view import LayerView


def is_ours(kind: type) -> bool:
    """True for a class that comes with winnow."""
    return kind.__module__.partition(".")[0] == "winnow"


def author(scorer: Scorer) -> str:
    """The class that scores come from: a second stage asks its base for them, unless it ranks by itself."""
    while isinstance(scorer, Refiner) and type(scorer).rank is Refiner.rank:
        scorer = scorer.base
    return type(scorer).__name__


def check_form(scores: Tensor, view: LayerView, name: str) -> None:
    """Raise MethodError, naming who gave them, unless scores are fp32 [H, N]; their numbers are not looked at."""
    if not isinstance(scores, Tensor):
        raise MethodError(f"{name} gives a {type(scores).__name__} as scores; give a tensor [heads, tokens].")
    wanted = list(view.keys.shape[:2])
    if list(scores.shape) != wanted:
        raise MethodError(f"{name} gives scores of shape {list(scores.shape)}; give [heads, tokens], here {wanted}.")
    if scores.dtype != torch.float32:
        raise MethodError(f"{name} gives scores in {_plain(scores.dtype)}; give them in float32: .float().")


def check_scored(scores: Tensor, view: LayerView, scorer: Scorer) -> None:
    """Raise MethodError unless a scorer's scores have the form that they must have, ModelError where one is NaN."""
    name = author(scorer)
    check_form(scores, view, name)
    check_scores(scores, view.layer, name)


def check_totals(totals: Sequence[int], plan: SlotPlan, allocator: Allocator) -> None:
    """Raise MethodError where layers' totals from outside of winnow are not those of the plan."""
    while isinstance(allocator, HeadAllocator) and type(allocator).layer_totals is HeadAllocator.layer_totals:
        allocator = allocator.across
    if is_ours(type(allocator)):
        return
    name = type(allocator).__name__
    if len(totals) != len(plan.heads):
        raise MethodError(f"{name} gives totals for {len(totals)} layers, but {len(plan.heads)} are to be compressed.")
    for layer, (total, heads) in enumerate(zip(totals, plan.heads, strict=True)):
        least, most = heads * plan.guaranteed, heads * plan.length
        if not least <= total <= most:
            raise MethodError(f"{name} gives layer {layer} {total} slots; give it {least} to {most}.")
    if _is_exact(allocator) and sum(totals) != plan.slots:
        raise MethodError(f"{name} gives all layers together {sum(totals)} slots, but the budget is {plan.slots}.")


def check_slots(slots: Tensor, scores: Tensor, allocation: Allocation, layer: int, allocator: Allocator) -> None:
    """Raise MethodError where heads' slots from outside of winnow are not what the layer has."""
    while isinstance(allocator, HeadUnion):
        allocator = allocator.across
    if is_ours(type(allocator)):
        return
    name = type(allocator).__name__
    heads, length = scores.shape
    if not isinstance(slots, Tensor) or slots.dtype != torch.int64 or slots.device.type != "cpu":
        raise MethodError(f"{name} gives the slots of heads as {_described(slots)}; give an int64 tensor on the CPU.")
    if list(slots.shape) != [heads]:
        raise MethodError(f"{name} gives slots {list(slots.shape)} for a layer of {heads} heads; give [{heads}].")
    guaranteed, total = allocation.plan.guaranteed, allocation.totals[layer]
    if int(slots.min()) < guaranteed or int(slots.max()) > length:
        raise MethodError(
            f"{name} gives the heads of layer {layer} {slots.tolist()} slots; give each {guaranteed} to {length}."
        )
    # A plan knows the slots of all layers at once; heads that share latents round them apart.
    if _is_exact(allocator) and not isinstance(allocator, PlannedAllocator) and int(slots.sum()) != total:
        raise MethodError(f"{name} gives the heads of layer {layer} {int(slots.sum())} slots in all; it has {total}.")


def _is_exact(allocator: Allocator) -> bool:
    """False where no budget is divided, and where the rounding of published code drifts."""
    return allocator.takes_budget and getattr(allocator, "rounding", "exact") != "paper"


def _described(value: object) -> str:
    if isinstance(value, Tensor):
        return f"{_plain(value.dtype)} on {value.device.type}"
    return f"a {type(value).__name__}"


def _plain(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
