"""The canonical names of methods whose parts are given as objects."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import MISSING, fields
from typing import Any

from winnow.allocate import Allocator, HeadAllocator, HeadUnion, Uniform
from winnow.composition import known
from winnow.composition.records import Preset, checked
from winnow.composition.syntax import format_call
from winnow.errors import MethodError
from winnow.parameters import differences, parameters_of
from winnow.score import Refiner, Scorer
from winnow.store import AllChannels, AsIs, Channels, Dense, Packed, Precision, Store

_INNER = ("base", "across")
"""Fields that hold another part, which has a name of its own."""


def checked_parts(scorer: Any, allocator: Any, store: Any) -> tuple[Scorer, Allocator, Store]:
    """A scorer, an allocator (None: uniform) and a store (None: dense; half of one with a plain other half).

    Raises MethodError for what is none, and for a union that is inside another allocator.
    """
    allocator = Uniform() if allocator is None else allocator
    if isinstance(store, Channels | Precision):
        half = checked(store)
        store = Packed(channels=half) if isinstance(half, Channels) else Packed(precision=half)
    store = Dense() if store is None else store
    for given, kind, article in ((scorer, Scorer, "a"), (allocator, Allocator, "an"), (store, Store, "a")):
        if not isinstance(given, kind):
            name = given.__name__ if isinstance(given, type) else type(given).__name__
            hint = f", with parentheses: {name}()" if isinstance(given, type) and issubclass(given, kind) else ""
            raise MethodError(f"{name} is not {article} {kind.__name__} object; give one{hint}.")
        checked(given)
    _check_union_is_outermost(allocator)
    return scorer, allocator, store


def _check_union_is_outermost(allocator: Allocator) -> None:
    inner = allocator
    while isinstance(inner, HeadAllocator):
        inner = inner.across
        if isinstance(inner, HeadUnion):
            outer = type(allocator).__name__
            raise MethodError(f"HeadUnion has no effect inside {outer}; put it around: HeadUnion(across={outer}(...)).")


def canonical_name(scorer: Scorer, allocator: Allocator, store: Store) -> str:
    """The parts in the order of composed names, each by its registered name, or by its class where it has none."""
    refiners = []
    while isinstance(scorer, Refiner):
        refiners.append(scorer)
        scorer = scorer.base
    presets = _presets(scorer)
    implied = presets[0].allocator if presets else Uniform()
    parts = [_written(scorer, ((each.name, each.scorer) for each in presets))]
    parts += [_written(each, _named(each)) for each in _allocators(allocator, implied)]
    parts += [_written(each, _named(each)) for each in reversed(refiners)]
    parts += [_written(each, _named(each)) for each in _halves(store)]
    return "+".join(parts)


def _allocators(allocator: Allocator, implied: Allocator) -> list[Allocator]:
    """The heads', the layers' and a union over them, but for what the scorer's name brings without a word."""
    if isinstance(allocator, HeadUnion) and allocator != implied:
        return [*_allocators(allocator.across, implied), allocator]
    found: list[Allocator] = []
    while isinstance(allocator, HeadAllocator) and allocator != implied:
        found.append(allocator)
        allocator = allocator.across
    return found if allocator == implied else [*found, allocator]


def _halves(store: Store) -> list[Any]:
    if not isinstance(store, Packed):
        return [] if isinstance(store, Dense) else [store]
    return [half for half in (store.channels, store.precision) if not isinstance(half, AllChannels | AsIs)]


def _presets(scorer: Scorer) -> list[Preset]:
    """Methods that are nothing but a scorer of the same class, or else those that have one allocator with it."""
    found = [preset for preset in known.all_presets() if type(preset.scorer) is type(scorer)]
    alone = [preset for preset in found if preset.allocator == Uniform()]
    return alone or [preset for preset in found if preset.allocator == found[0].allocator]


def _named(part: Any) -> Iterator[tuple[str, Any]]:
    for named in known.all_parts():
        if type(named.part) is type(part):
            yield named.name, named.part


def _written(part: Any, candidates: Iterator[tuple[str, Any]]) -> str:
    """The first name that says all there is to say of a part, else its class with the fields that were set."""
    for name, default in candidates:
        if _fixed(default) == _fixed(part):
            return format_call(name, differences(default, part))
    return format_call(type(part).__name__, _set_fields(part))


def _fixed(part: Any) -> dict[str, Any]:
    """Fields of a part that are no parameters, which a name does not say."""
    said = {parameter.name for parameter in parameters_of(part)}
    return {f.name: getattr(part, f.name) for f in fields(part) if f.name not in said and f.name not in _INNER}


def _set_fields(part: Any) -> dict[str, Any]:
    found = {}
    for field in fields(part):
        default = field.default if field.default_factory is MISSING else field.default_factory()
        value = getattr(part, field.name)
        if field.name not in _INNER and value != default:
            found[field.name] = value
    return found
