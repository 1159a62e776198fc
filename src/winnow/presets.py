"""Methods by name: `methods()` lists what there is, `method()` puts it together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from winnow.allocate import Allocator, HeadAllocator, Uniform
from winnow.budget import Budget
from winnow.compose import Call, Value, parse, written
from winnow.errors import BudgetError, MethodError, UnknownMethod, UnknownParameter, closest
from winnow.method import Method
from winnow.parameters import Parameter, parameters_of
from winnow.registry import PARTS, PRESETS, MethodRecord, Preset

_PRESETS = {preset.name: preset for preset in PRESETS}
_PARTS = {part.name: part for part in PARTS}


class _Group(NamedTuple):
    """One part of a composed name: the dataclasses it brings, as registered and as the user wants them."""

    name: str
    written: frozenset[str]
    """Parameters that the name itself sets."""
    defaults: list[Any]
    chosen: list[Any]


def methods() -> list[MethodRecord]:
    """Everything that can be named: methods first, then the parts that can follow them."""
    presets = [
        MethodRecord(p.name, "method", p.summary, p.paper, _offered(_components(p, replaced=()))) for p in PRESETS
    ]
    parts = [MethodRecord(p.name, "allocator", p.summary, p.paper, parameters_of(p.allocator)) for p in PARTS]
    return presets + parts


def method(name: str, budget: int | str | None = None, **parameters: Value) -> Method:
    """A method by name, with its budget and parameters.

    name: one of `winnow.methods()`, alone ("adakv") or followed by parts that replace the method's own
    allocation ("snapkv(window=16)+ada(0.3)+pyramid", the parts in any order). What `str(method)` gives, with
    its budget after "@", is read back to an equal method.
    budget: see `winnow.budget.Budget`; none for "full", which keeps everything, and needed for all others.
    parameters: of the method and its parts, by name (window=16, floor=0.3, rounding="paper").

    Raises UnknownMethod, UnknownParameter, MethodError or BudgetError, each with what exists or is allowed.
    """
    text, budget = _split_budget(name, budget)
    calls = parse(text)
    preset = _preset(calls[0].name)
    limit = _limit(preset, budget)
    groups = [_group(call, defaults) for call, defaults in _resolve(preset, calls)]
    groups = _with_parameters(groups, text, parameters)
    scorer, *allocators = [part for group in groups for part in group.chosen]
    canonical = "+".join(written(group.name, _differences(group)) for group in groups)
    return Method(canonical, scorer, _joined(allocators), preset.store, limit)


def _split_budget(name: str, budget: int | str | None) -> tuple[str, int | str | None]:
    text, at, suffix = name.partition("@")
    if at and budget is not None:
        raise MethodError(f"The budget is given twice, {suffix.strip()!r} and {budget!r}; keep one.")
    return text.strip(), suffix.strip() if at else budget


def _preset(name: str) -> Preset:
    if name in _PRESETS:
        return _PRESETS[name]
    if name in _PARTS:
        raise MethodError(f"{name!r} only follows a method: write for example 'snapkv+{name}'.")
    raise UnknownMethod(f"There is no method {name!r}: {closest(name, _PRESETS)}")


def _limit(preset: Preset, budget: int | str | None) -> Budget:
    if preset.name == "full":
        if budget is not None:
            raise BudgetError(f"'full' keeps everything and takes no budget; drop budget={budget!r}.")
    elif budget is None:
        raise BudgetError(
            f"{preset.name!r} needs a budget: 128 (tokens per KV head), '2%' (of the prompt) "
            "or '64MiB' (of one sequence)."
        )
    return Budget.parse(budget)


def _resolve(preset: Preset, calls: list[Call]) -> list[tuple[Call, list[Any]]]:
    """Every part of the name with its dataclasses; the order after the first is heads, then layers."""
    if preset.name == "full" and len(calls) > 1:
        raise MethodError("'full' keeps everything, so there is nothing to allocate; drop what follows it.")
    followers = sorted(((call, _part(call.name)) for call in calls[1:]), key=lambda found: _role(found[1]))
    roles = [_role(part) for _, part in followers]
    if len(set(roles)) < len(roles):
        names = " and ".join(call.name for call, _ in followers)
        raise MethodError(f"{names} do the same work; keep one of each kind ('ada', and 'uniform' or 'pyramid').")
    own = _components(preset, replaced=roles)
    return [(calls[0], own), *((call, [part]) for call, part in followers)]


def _part(name: str) -> Allocator:
    if name not in _PARTS:
        raise UnknownMethod(f"There is no part {name!r} that could follow a method: {closest(name, _PARTS)}")
    return _PARTS[name].allocator


def _role(allocator: Allocator) -> str:
    """What an allocator divides: the slots of a layer among its heads, or all slots among the layers."""
    return "heads" if isinstance(allocator, HeadAllocator) else "layers"


def _components(preset: Preset, replaced: Iterable[str]) -> list[Any]:
    """The scorer and the preset's own allocators but those replaced by parts."""
    if preset.name == "full":
        return [preset.scorer]
    allocator = preset.allocator
    own = [allocator, allocator.across] if isinstance(allocator, HeadAllocator) else [allocator]
    return [preset.scorer, *(part for part in own if _role(part) not in replaced)]


def _joined(allocators: list[Any]) -> Allocator:
    """One allocator from at most one for the heads and at most one for the layers."""
    by_role = {_role(allocator): allocator for allocator in allocators}
    layers = by_role.get("layers", Uniform())
    return replace(by_role["heads"], across=layers) if "heads" in by_role else layers


def _offered(parts: Iterable[Any]) -> tuple[Parameter, ...]:
    """The parameters of several dataclasses, one of each name."""
    offered: dict[str, Parameter] = {}
    for part in parts:
        for found in parameters_of(part):
            offered.setdefault(found.name, found)
    return tuple(offered.values())


def _group(call: Call, defaults: list[Any]) -> _Group:
    """Applies the arguments written in a part of the name to that part only."""
    names = [p.name for p in _offered(defaults)]
    if len(call.positional) > len(names):
        raise MethodError(f"{call.name!r} takes {len(names)} arguments at most: {', '.join(names) or 'none'}.")
    given = dict(zip(names, call.positional, strict=False))
    for key in call.named:
        if key in given:
            raise MethodError(f"{call.name!r} got {key!r} twice; keep one.")
    given |= call.named
    _reject_unknown(call.name, given, names)
    return _Group(call.name, frozenset(given), defaults, [_with(part, given) for part in defaults])


def _with_parameters(groups: list[_Group], text: str, parameters: Mapping[str, Value]) -> list[_Group]:
    """Applies parameters given by keyword to every part that has them."""
    _reject_unknown(text, parameters, [p.name for g in groups for p in _offered(g.defaults)])
    for group in groups:
        for key in group.written & parameters.keys():
            raise MethodError(f"{key!r} is given twice, in {text!r} and by keyword; keep one.")
    return [g._replace(chosen=[_with(part, parameters) for part in g.chosen]) for g in groups]


def _with(part: Any, given: Mapping[str, Value]) -> Any:
    own = {p.name for p in parameters_of(part)}
    return replace(part, **{key: value for key, value in given.items() if key in own})


def _differences(group: _Group) -> dict[str, Value]:
    """The parameters of a group that are not at their defaults."""
    return {
        after.name: after.default  # type: ignore[misc]
        for default, chosen in zip(group.defaults, group.chosen, strict=True)
        for before, after in zip(parameters_of(default), parameters_of(chosen), strict=True)
        if before.default != after.default
    }


def _reject_unknown(owner: str, given: Iterable[str], known: Iterable[str]) -> None:
    known = list(known)
    for key in given:
        if key not in known:
            raise UnknownParameter(f"{owner!r} has no parameter {key!r}: {closest(key, known)}")
