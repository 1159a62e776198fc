"""A packed block as named tensors and plain facts, and back: what a file holds of it, whichever store packed it.

Blocks are dataclasses of tensors, facts and further dataclasses, so their fields say what there is to write: tensors
under their own names, with dots for what lies inside, everything else as facts. A block of a new kind is added to
`KINDS`, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from winnow.kernels.interface import Block, PackedBlock, Parts, PrefixBlock
from winnow.kernels.packed import Entries, PackedKeys, PackedValues, Pruned

Fact = str | int | float | bool | None

KINDS: dict[str, type[Any]] = {
    "dense": PrefixBlock,
    "packed": PackedBlock,
    "parts": Parts,
    "keys": PackedKeys,
    "values": PackedValues,
    "entries": Entries,
    "pruned": Pruned,
}
"""Name in files -> what it is there."""
ON_CPU = frozenset({"offsets", "later_starts"})
"""Fields that stay on the CPU; all others live on the model's device."""
_KIND, _DTYPE = "kind", "torch."


class Written(NamedTuple):
    """A block taken apart."""

    format: str
    tensors: dict[str, Tensor]
    facts: dict[str, Fact]
    """What is no tensor, and the kinds of what lies inside."""


def take_apart(block: Block) -> Written:
    """The tensors of a block, not copied, and its facts. Raises KeyError for a block of a kind that has no name."""
    tensors: dict[str, Tensor] = {}
    facts: dict[str, Fact] = {}
    for name, part in _leaves(block, ""):
        if isinstance(part, Tensor):
            tensors[name] = part
        else:
            facts[name] = str(part) if isinstance(part, torch.dtype) else part
    return Written(str(facts.pop(_KIND)), tensors, facts)


def put_together(format: str, tensors: Mapping[str, Tensor], facts: Mapping[str, Fact], device: torch.device) -> Block:
    """The block that `take_apart` gave, over the same memory where that is on `device` already.

    Raises KeyError for an unknown format, TypeError or ValueError for parts that make no block.
    """
    block: Block = _made({**tensors, **facts, _KIND: format}, device)
    return block


def _leaves(part: Any, name: str) -> Iterator[tuple[str, Any]]:
    """What a dataclass holds at any depth, under dotted names, with the kinds of all dataclasses on the way."""
    if isinstance(part, tuple):
        for index, each in enumerate(part):
            yield from _leaves(each, _under(name, str(index)))
    elif is_dataclass(part):
        yield _under(name, _KIND), {made: kind for kind, made in KINDS.items()}[type(part)]
        for field in fields(part):
            yield from _leaves(getattr(part, field.name), _under(name, field.name))
    else:
        yield name, part


def _made(leaves: dict[str, Any], device: torch.device) -> Any:
    """The inverse of `_leaves` for one dataclass, or for a tuple of them."""
    inside: dict[str, dict[str, Any]] = {}
    own: dict[str, Any] = {}
    for name, part in leaves.items():
        first, dot, rest = name.partition(".")
        if dot:
            inside.setdefault(first, {})[rest] = part
        else:
            own[first] = _leaf(first, part, device)
    own |= {name: _made(parts, device) for name, parts in inside.items()}
    if _KIND not in own:
        return tuple(own[str(index)] for index in range(len(own)))
    return KINDS[own.pop(_KIND)](**own)


def _leaf(name: str, part: Any, device: torch.device) -> Any:
    if isinstance(part, Tensor):
        return part if name in ON_CPU else part.to(device)
    if isinstance(part, str) and part.startswith(_DTYPE):
        return getattr(torch, part.removeprefix(_DTYPE))
    return part


def _under(name: str, field: str) -> str:
    return f"{name}.{field}" if name else field
