"""The schema of a format: rules that its tensors keep, listed by the format and checked here alone.

Kernels read raw memory, so every block keeps the rules on dtypes, shapes, places and bounds from the moment it is made.
Rules on content, which take a look at every number, are for blocks that come from a file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from winnow.doubts import doubted


class Demand(NamedTuple):
    """A property of a tensor's numbers."""

    says: str
    """"must ascend"; the tensor's name stands before it."""
    holds: Callable[[Tensor], Tensor | bool]
    """True, or a scalar of a device that may still be computing it."""


FINITE = Demand("must be finite", lambda numbers: numbers.isfinite().all())
ASCENDING = Demand("must ascend", lambda numbers: (numbers.diff(dim=-1) > 0).all())


def within(low: int, stop: int) -> Demand:
    """Numbers from `low` on that are below `stop`."""

    def holds(numbers: Tensor) -> Tensor | bool:
        if not numbers.numel():
            return True
        least, largest = numbers.aminmax()
        return (least >= low) & (largest < stop)

    return Demand(f"must be in {low} ... {stop - 1}", holds)


class Rule(NamedTuple):
    """Everything that one tensor of a format has to be."""

    what: str
    """Its name in error texts: "scales of keys"."""
    tensor: Tensor
    dtype: torch.dtype
    shape: tuple[int | None, ...]
    """None: any size."""
    device: torch.device
    demands: Sequence[Demand] = ()
    """Checked always: cheap ones that memory safety rests upon."""
    content: Sequence[Demand] = ()
    """Checked of files, by `check_content`."""


def check(rules: Iterable[Rule]) -> None:
    """Raise ValueError for the first rule that is broken, content aside; see `doubted`."""
    for rule in rules:
        _check_memory(rule)
        _check_demands(rule, rule.demands)


def check_content(rules: Iterable[Rule]) -> None:
    """Raise ValueError for the first rule on content that is broken, of tensors that `check` has accepted."""
    for rule in rules:
        _check_demands(rule, rule.content)


def _check_demands(rule: Rule, demands: Sequence[Demand]) -> None:
    for demand in demands:
        held = demand.holds(rule.tensor)
        wrong = ~held if isinstance(held, Tensor) else torch.tensor(not held, device="cpu")
        doubted(wrong, ValueError(f"{rule.what} {demand.says}"))


def _check_memory(rule: Rule) -> None:
    tensor, shape = rule.tensor, rule.shape
    fits = tensor.ndim == len(shape) and all(
        size is None or size == found for size, found in zip(shape, tensor.shape, strict=True)
    )
    if not fits or tensor.dtype != rule.dtype:
        sizes = ["any" if size is None else size for size in shape]
        raise ValueError(f"{rule.what} are {tensor.dtype} {list(tensor.shape)} and must be {rule.dtype} {sizes}")
    if tensor.device != rule.device or not tensor.is_contiguous():
        raise ValueError(f"{rule.what} must be contiguous and on {rule.device}")


class Side(NamedTuple):
    """The keys or the values of a block: what their tensors must agree with."""

    name: str
    """"keys" or "values"."""
    slots: int
    """S"""
    heads: int
    """H"""
    dtype: torch.dtype
    """The model's."""
    device: torch.device

    def rule(
        self,
        what: str,
        tensor: Tensor,
        dtype: torch.dtype,
        shape: tuple[int | None, ...],
        demands: Sequence[Demand] = (),
        content: Sequence[Demand] = (),
    ) -> Rule:
        """The rule of one tensor of this side."""
        return Rule(f"{what} of {self.name}", tensor, dtype, shape, self.device, demands, content)


MODEL_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
"""Dtypes that a model may have."""


def check_sizes(dtype: torch.dtype, *dims: int) -> None:
    """Raise ValueError unless a block's dtype is a model's and its heads have channels."""
    if dtype not in MODEL_DTYPES:
        raise ValueError(f"a block cannot be of {dtype}; known are {', '.join(map(str, MODEL_DTYPES))}")
    if min(dims) < 1:
        raise ValueError(f"heads of {min(dims)} channels hold nothing")


def take_rows(rows: Tensor, slots: Tensor, sizes: Tensor | None) -> Tensor:
    """Rows of slots [n], in that order. sizes: [S] numbers of every row, where rows of different length lie flat."""
    if sizes is None:
        return rows[slots]
    lengths, starts = sizes[slots], (sizes.cumsum(0) - sizes)[slots]
    places = lengths.cumsum(0) - lengths
    index = torch.arange(int(lengths.sum()), device=rows.device) + (starts - places).repeat_interleave(lengths)
    return rows[index]


def cat_present(tensors: Sequence[Tensor | None]) -> Tensor | None:
    """The tensors one after another; None where there are none."""
    present = [tensor for tensor in tensors if tensor is not None]
    return torch.cat(present) if present else None
