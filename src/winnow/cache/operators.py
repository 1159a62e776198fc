"""Operators of torch as a recording sees them: what they do with memory, and how their work is done again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum, auto
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

_ASKING = frozenset((torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape))


class Kind(Enum):
    """The ways of operators with memory."""

    VIEW = auto()
    """They show memory of their arguments."""
    CHANGE = auto()
    """They write into it."""
    EMPTY = auto()
    """They make memory with nothing in it."""
    CONSTANT = auto()
    """They show numbers that the host made, which it may change afterwards."""
    LOOK = auto()
    """The host gets numbers, or as many as the numbers say."""
    OTHER = auto()
    """They make new memory, or show their arguments'."""


@cache
def kind_of(function: Any) -> Kind:
    """The kind of an overload, told from its schema and tags."""
    schema = function._schema
    if not _ASKING.isdisjoint(function.tags):
        return Kind.LOOK
    if function is torch.ops.aten.lift_fresh.default:
        return Kind.CONSTANT
    if schema.is_mutable:
        return Kind.CHANGE
    if "empty" in schema.name:
        return Kind.EMPTY
    return Kind.VIEW if schema.returns and all(each.alias_info for each in schema.returns) else Kind.OTHER


def takes_places(function: Any, args: Any) -> bool:
    """True for indexing by numbers of places, of which there are as many results; masks have as many as are true."""
    return function._schema.name == "aten::index" and not any(
        each.dtype in (torch.bool, torch.uint8) for each in args[1] if each is not None
    )


def adds_rows(function: Any, args: Any, kwargs: dict[str, Any]) -> bool:
    """True for an operator that adds the numbers of two tensors that lie alike, as they are."""
    if function is not torch.ops.aten.add.Tensor or kwargs or not all(isinstance(each, Tensor) for each in args):
        return False
    one, other = args
    alike = one.shape == other.shape and one.dtype == other.dtype and one.device == other.device
    return alike and one.is_contiguous() and other.is_contiguous()


def made_by(args: Any, kwargs: dict[str, Any], result: Any) -> list[Tensor]:
    """Results in memory that is new; none where it is that of arguments."""
    given = {_key(each) for each in _tensors((args, kwargs))}
    found = list(_tensors(result))
    return [] if all(_key(each) in given for each in found) else found


def into_memory(function: Any, args: Any, kwargs: dict[str, Any], made: list[Tensor]) -> Callable[[], Any]:
    """A call that does an operator's work once more, into the memory of its results."""
    if function is torch.ops.aten._to_copy.default:
        return partial(made[0].copy_, args[0])
    into = _into(function)
    if into is not None and len(made) == len(into[1]):
        form, names = into
        return partial(form, *args, **kwargs, **dict(zip(names, made, strict=True)))

    def copied() -> None:
        for place, each in zip(made, _tensors(function(*args, **kwargs)), strict=True):
            place.copy_(each)

    return copied


@cache
def _into(function: Any) -> tuple[Any, list[str]] | None:
    """The form of an operator that writes its results into tensors, and the names that it takes them by, in order."""
    wanted = [(each.name, str(each.type)) for each in function._schema.arguments]
    packet = function._overloadpacket
    for name in packet.overloads():
        form = getattr(packet, name)
        places = [each.name for each in form._schema.arguments if each.is_out]
        others = [(each.name, str(each.type)) for each in form._schema.arguments if not each.is_out]
        if len(places) == len(function._schema.returns) and others == wanted:
            return form, places
    return None


def _tensors(values: Any) -> Iterator[Tensor]:
    """Those anywhere in arguments or results of an operator."""
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, tuple | list):
        for each in values:
            yield from _tensors(each)
    elif isinstance(values, dict):
        yield from _tensors(tuple(values.values()))


def _key(tensor: Tensor) -> int:
    key: int = tensor.untyped_storage()._cdata
    return key
