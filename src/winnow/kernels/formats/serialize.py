"""Blocks as named tensors and plain facts, and back: what a file holds of a block of any format.

The fields of a format say what there is to write: tensors under their own names, with dots for what lies inside,
everything else as facts. Reading is as strict: names and types are those that the fields declare, and every tensor
keeps the rules of its format (`schema.py`) before anything points to its memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, replace
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from winnow.kernels.formats.format import ON_CPU, Format
from winnow.kernels.formats.parts import Block, parts_of
from winnow.kernels.formats.schema import MODEL_DTYPES, check_content
from winnow.typed import KIND, TypedError, read_as, shown

Fact = str | int | float | bool | None

_DTYPES = {str(dtype): dtype for dtype in MODEL_DTYPES}
_DEEPEST = 8
"""Dots in a name; no format lies that deep."""
F = TypeVar("F", bound=Format)


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
    return SerializedBlock(str(facts.pop(KIND)), tensors, facts)


def put_together(format: str, tensors: Mapping[str, Tensor], facts: Mapping[str, Fact]) -> Block:
    """The block that `take_apart` gave, over the same memory.

    Raises ValueError for a format, a name, a fact or a tensor that breaks a rule; every number is looked at.
    """
    plain = {name: _DTYPES.get(fact, fact) if isinstance(fact, str) else fact for name, fact in facts.items()}
    flat = sorted(name for name, tensor in tensors.items() if tensor.ndim == 0)
    if flat:
        raise TypedError(f"{flat[0]} has no axes")
    block: Block = read_as(Block, _nested([(KIND, format), *plain.items(), *tensors.items()]))  # type: ignore[arg-type]
    for part in parts_of(block):
        check_content(part.rules())
    return block


def on_device(format: F, device: torch.device) -> F:
    """The same with tensors on `device`, but for those that stay on the CPU; itself where nothing moves."""
    movable = [field.name for field in fields(format) if field.metadata != ON_CPU]  # type: ignore[arg-type]
    moved = {name: _moved(getattr(format, name), device) for name in movable}
    if all(value is getattr(format, name) for name, value in moved.items()):
        return format
    return replace(format, **moved)  # type: ignore[type-var]


def _moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, Format):
        return on_device(value, device)
    if isinstance(value, tuple):
        each = tuple(_moved(part, device) for part in value)
        return each if any(a is not b for a, b in zip(each, value, strict=True)) else value
    return value


def _leaves(part: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Tensors and facts at any depth of a format, under dotted names, with the names of all formats on the way."""
    if isinstance(part, tuple):
        for index, each in enumerate(part):
            yield from _leaves(each, _under(name, str(index)))
    elif isinstance(part, Format):
        yield _under(name, KIND), part.name_in_files
        for field in fields(part):  # type: ignore[arg-type]
            yield from _leaves(getattr(part, field.name), _under(name, field.name))
    else:
        yield name, part


def _nested(leaves: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Leaves with dotted names as mappings of mappings; numbered ones are lists."""
    nested: dict[str, Any] = {}
    for name, leaf in leaves:
        *path, last = name.split(".")
        if len(path) > _DEEPEST:
            raise TypedError(f"no {shown(name)} belongs there")
        inside = nested
        for step in path:
            inside = inside.setdefault(step, {})
            if not isinstance(inside, dict):
                raise TypedError(f"{shown(step)} comes twice")
        if last in inside:
            raise TypedError(f"{shown(name)} comes twice")
        inside[last] = leaf
    return {name: _listed(part) for name, part in nested.items()}


def _listed(part: Any) -> Any:
    if not isinstance(part, dict):
        return part
    inside = {name: _listed(each) for name, each in part.items()}
    numbers = [str(index) for index in range(len(inside))]
    return [inside[number] for number in numbers] if inside and set(inside) == set(numbers) else inside


def _under(name: str, field: str) -> str:
    return f"{name}.{field}" if name else field
