"""Records of methods and parts that somebody else wrote, and what these must be."""

from __future__ import annotations

import re
from typing import Any

from winnow.allocate import Allocator, Uniform
from winnow.composition.registry import NamedPart, Part, Preset
from winnow.errors import MethodError
from winnow.parameters import parameters_of
from winnow.score import Refiner, Scorer
from winnow.store import Channels, Precision

NAME = re.compile(r"[a-z][\w-]*", re.ASCII)
_WORDS = ("name", "budget", "allocator", "store")
"""Arguments of `winnow.method` besides parameters."""


def record_of(
    name: str, part: Any, allocator: Allocator | None = None, summary: str | None = None, paper: str = ""
) -> Preset | NamedPart:
    """The record of a part under a name; see `winnow.register`.

    Raises MethodError for what is no name and no part.
    """
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise MethodError(f"{name!r} cannot be a name: use lower-case letters, digits, '_' and '-', a letter first.")
    made = _made(part)
    _check_parameters(made)
    text = (type(made).__doc__ or "").strip().splitlines()
    said = summary if summary is not None else text[0] if text else ""
    if isinstance(made, Scorer) and not isinstance(made, Refiner):
        return Preset(name, said, paper, made, Uniform() if allocator is None else checked(allocator))
    if allocator is not None:
        raise MethodError(f"only a scorer can have an allocator; {name!r} follows other methods, which have their own.")
    return NamedPart(name, said, paper, made)


def checked(part: Any) -> Any:
    """A scorer, an allocator or a part of a store as it is. Raises MethodError where methods cannot be made of it."""
    kind = type(part).__name__
    if not _is_frozen_dataclass(type(part)):
        raise MethodError(
            f"{kind} must be a frozen dataclass, like all parts of methods: put @dataclass(frozen=True) above it."
        )
    try:
        hash(part)
    except TypeError as problem:
        raise MethodError(f"{kind} cannot be hashed ({problem}), as parts of methods must be: use tuples.") from None
    return part


def _is_frozen_dataclass(kind: type) -> bool:
    """False also for a class whose fields are none, as only the one that it is derived from was decorated."""
    settings = getattr(kind, "__dataclass_params__", None)
    overlooked = "__dataclass_params__" not in vars(kind) and vars(kind).get("__annotations__")
    return settings is not None and settings.frozen and not overlooked


def _made(part: Any) -> Part:
    """An object of a class, or the object itself, checked."""
    kind = part if isinstance(part, type) else type(part)
    if not issubclass(kind, Scorer | Allocator | Channels | Precision):
        raise MethodError(
            f"{kind.__name__} is not a part of a method: derive it from Scorer or Refiner (winnow.score), Allocator or "
            "HeadAllocator (winnow.allocate), Channels or Precision (winnow.store)."
        )
    if kind is part:
        try:
            part = kind()
        except TypeError as problem:
            raise MethodError(
                f"{kind.__name__} cannot be made without arguments ({problem}): give its fields defaults and write "
                "its abstract methods, or register an object of it."
            ) from None
    made: Part = checked(part)
    return made


def _check_parameters(part: Part) -> None:
    for parameter in parameters_of(part):
        if parameter.name in _WORDS:
            raise MethodError(
                f"{type(part).__name__}: a parameter cannot be called {parameter.name!r}, as winnow.method has an "
                "argument of that name; choose another name."
            )
