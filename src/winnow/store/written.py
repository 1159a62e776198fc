"""A packed block as named tensors and plain facts, and back: what a file holds of it, whichever store packed it.

A block is a dataclass, so its fields say what there is to write: tensors under their own names, everything else as
facts. A store with a packed form of its own adds its block to `FORMATS`, and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import NamedTuple

import torch
from torch import Tensor

from winnow.kernels.interface import PrefixBlock

Fact = str | int | float | bool | None


class Format(NamedTuple):
    """How one kind of block is written."""

    block: type[PrefixBlock]
    on_device: frozenset[str]
    """Fields that live on the model's device; the others stay on the CPU."""


FORMATS = {"dense": Format(PrefixBlock, frozenset({"keys", "values"}))}
"""Name in files -> format."""


class Written(NamedTuple):
    """A block taken apart."""

    format: str
    tensors: dict[str, Tensor]
    facts: dict[str, Fact]
    """Fields that are no tensors."""


def take_apart(block: PrefixBlock) -> Written:
    """The tensors of a block, not copied, and its facts. Raises KeyError for a block that has no format."""
    name = {format.block: name for name, format in FORMATS.items()}[type(block)]
    parts = {field.name: getattr(block, field.name) for field in fields(block)}
    tensors = {key: part for key, part in parts.items() if isinstance(part, Tensor)}
    return Written(name, tensors, {key: part for key, part in parts.items() if key not in tensors})


def put_together(
    format: str, tensors: Mapping[str, Tensor], facts: Mapping[str, Fact], device: torch.device
) -> PrefixBlock:
    """The block that `take_apart` gave, over the same memory where that is on `device` already.

    Raises KeyError for an unknown format, TypeError or ValueError for parts that make no block.
    """
    kind = FORMATS[format]
    moved = {name: tensor.to(device) if name in kind.on_device else tensor for name, tensor in tensors.items()}
    return kind.block(**moved, **facts)  # type: ignore[arg-type]
