"""Blocks as named tensors and plain facts, and back: what a file holds of a block of any format.

The fields of a format say what there is to write: tensors under their own names, with dots for what lies inside,
everything else as facts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any, NamedTuple

import torch
from torch import Tensor

from winnow.kernels.formats.format import FORMATS, ON_CPU, Format
from winnow.kernels.formats.parts import Block

Fact = str | int | float | bool | None

_KIND, _DTYPE = "kind", "torch."


class SerializedBlock(NamedTuple):
    """A block taken apart."""

    format: str
    """Its name in files."""
    tensors: dict[str, Tensor]
    facts: dict[str, Fact]
    """Everything else, and the formats of what lies inside."""


def take_apart(block: Block) -> SerializedBlock:
    """The tensors of a block, not copied, and its facts."""
    tensors: dict[str, Tensor] = {}
    facts: dict[str, Fact] = {}
    for name, part in _leaves(block, ""):
        if isinstance(part, Tensor):
            tensors[name] = part
        else:
            facts[name] = str(part) if isinstance(part, torch.dtype) else part
    return SerializedBlock(str(facts.pop(_KIND)), tensors, facts)


def put_together(format: str, tensors: Mapping[str, Tensor], facts: Mapping[str, Fact], device: torch.device) -> Block:
    """The block that `take_apart` gave, over the same memory where that is on `device` already.

    Raises KeyError for an unknown format, TypeError or ValueError for parts that make no block.
    """
    block: Block = _made({**tensors, **facts, _KIND: format}, device)
    return block


def _leaves(part: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Tensors and facts at any depth of a format, under dotted names, with the names of all formats on the way."""
    if isinstance(part, tuple):
        for index, each in enumerate(part):
            yield from _leaves(each, _under(name, str(index)))
    elif isinstance(part, Format):
        yield _under(name, _KIND), part.name_in_files
        for field in fields(part):  # type: ignore[arg-type]
            yield from _leaves(getattr(part, field.name), _under(name, field.name))
    else:
        yield name, part


def _made(leaves: dict[str, Any], device: torch.device) -> Any:
    """The inverse of `_leaves` for one format, or for a tuple of them."""
    inside: dict[str, dict[str, Any]] = {}
    own: dict[str, Any] = {}
    for name, part in leaves.items():
        first, dot, rest = name.partition(".")
        if dot:
            inside.setdefault(first, {})[rest] = part
        else:
            own[first] = part
    own |= {name: _made(parts, device) for name, parts in inside.items()}
    if _KIND not in own:
        return tuple(own[str(index)] for index in range(len(own)))
    format = FORMATS[own.pop(_KIND)]
    on_cpu = {field.name for field in fields(format) if field.metadata == ON_CPU}
    return format(**{name: _placed(part, None if name in on_cpu else device) for name, part in own.items()})


def _placed(part: Any, device: torch.device | None) -> Any:
    """A field of a format; tensors are moved where a device is given."""
    if isinstance(part, Tensor):
        return part if device is None else part.to(device)
    if isinstance(part, str) and part.startswith(_DTYPE):
        return getattr(torch, part.removeprefix(_DTYPE))
    return part


def _under(name: str, field: str) -> str:
    return f"{name}.{field}" if name else field
