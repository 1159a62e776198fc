"""Methods by name: `methods()` lists what there is, `method()` puts it together."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

from winnow.allocate import Allocator, HeadAllocator, HeadUnion, Uniform
from winnow.budget import Budget
from winnow.composition import known
from winnow.composition.method import Method
from winnow.composition.objects import canonical_name, checked_parts
from winnow.composition.registry import (
    ALIASES,
    PARAMETER_ALIASES,
    PARTS,
    PRESETS,
    MethodRecord,
    NamedPart,
    Part,
    PartKind,
    Preset,
)
from winnow.composition.syntax import Call, Value, format_call, parse
from winnow.errors import BudgetError, MethodError, UnknownMethod, UnknownParameter, WinnowError, closest
from winnow.parameters import Parameter, differences, parameters_of
from winnow.score import Full, Refiner, Scorer
from winnow.store import AllChannels, AsIs, Channels, Dense, Packed, Precision, Store

ROLES = ("score", "heads", "layers", "union", "refinement", "channels", "bits")
"""The work of parts, in the order of a canonical name."""
_WORK = {
    "score": "score tokens",
    "heads": "divide a layer's slots among its heads",
    "layers": "divide slots among layers",
    "union": "choose the tokens that heads of a layer share",
    "refinement": "refine scores",
    "channels": "choose channels",
    "bits": "choose bits",
}


class _Group(NamedTuple):
    """One part of a method string: the dataclasses it brings, as registered and as the user wants them."""

    name: str
    written: frozenset[str]
    """Parameters that the string itself sets."""
    defaults: list[Any]
    chosen: list[Any]


def methods() -> list[MethodRecord]:
    """Records of all methods, then of the parts that can follow them, then of registered and installed ones.

    Warns of methods of installed packages that cannot be loaded.
    """
    for problem in known.load_installed():
        warnings.warn(problem, stacklevel=2)
    return own_methods() + registered_methods()


def own_methods() -> list[MethodRecord]:
    """Those of `methods()` that come with winnow."""
    return _records(PRESETS, PARTS)


def registered_methods() -> list[MethodRecord]:
    """Those of `methods()` that were registered, and those of installed packages that are loaded."""
    presets = [preset for preset in known.all_presets() if preset not in PRESETS]
    return _records(presets, [part for part in known.all_parts() if part not in PARTS])


def _records(presets: Iterable[Preset], parts: Iterable[NamedPart]) -> list[MethodRecord]:
    return [
        *(MethodRecord(p.name, "method", p.summary, p.paper, _offered(_components(p, replaced=()))) for p in presets),
        *(
            MethodRecord(p.name, _kind(p.part), p.summary, p.paper, parameters_of(p.part), _aliases(p.name))
            for p in parts
        ),
    ]


def method(
    name: str | Scorer,
    budget: int | str | None = None,
    *,
    allocator: Allocator | None = None,
    store: Store | Channels | Precision | None = None,
    **parameters: Value,
) -> Method:
    """Makes a method from its name, or from your own scorer, allocator and store, with a budget and parameters.

    Args:
        name: one of `winnow.methods()`, alone ("adakv") or followed by parts ("snapkv(window=16)+ada(0.3)+pyramid",
            "aperturekv+spark(0.8)+bits(8, 4)"). Parts replace the method's own allocation, refine its scores or store
            its slots in another form; their order does not matter. The text of a method, `str(method)`, which has the
            budget after an "@", gives an equal method. Instead of a name, it can be a scorer as an object; the method
            is then named after its parts.
        budget: see `winnow.budget.Budget`. Not for "full", which keeps everything, nor for methods that decide by a
            rule of their own (duoattention, masking); required for all others.
        allocator: with a scorer as an object: divides slots among layers and heads. Default: equally.
        store: with a scorer as an object: the form, or half of the form, in which slots are stored. Default: as they
            are.
        parameters: parameters of the method and its parts, by name (window=16, floor=0.3, rounding="paper",
            scores="FILE").

    Raises:
        UnknownMethod: there is no such method or part; the message lists those that exist.
        UnknownParameter: the method has no such parameter; the message lists its parameters.
        MethodError: the parts do not fit together, or a parameter has a value that is not allowed.
        BudgetError: the budget is missing, cannot be read, or is too small for what the method always keeps.
    """
    if not isinstance(name, str):
        return _of_objects(*checked_parts(name, allocator, store), budget, parameters)
    if allocator is not None or store is not None:
        raise MethodError(
            f"{name!r} is a name: add allocator and store to it, as in 'snapkv+ada+bits(4)', or give a scorer as an "
            "object."
        )
    return NamedMethod(name).method(budget, parameters)


def _of_objects(
    scorer: Scorer, allocator: Allocator, store: Store, budget: int | str | None, parameters: Mapping[str, Value]
) -> Method:
    if parameters:
        raise UnknownParameter(f"{type(scorer).__name__} is an object: set {', '.join(parameters)} when you make it.")
    name = canonical_name(scorer, allocator, store)
    return Method(name, scorer, allocator, store, _limit(name, isinstance(scorer, Full), allocator, budget))


def as_method(given: Method | str) -> Method:
    """A method as it is, or from its text with the budget in it: "adakv @ 128", "full".

    Raises what `method` does; MethodError for anything else.
    """
    if isinstance(given, Method):
        return given
    if isinstance(given, str):
        return method(given)
    raise MethodError(
        f'a method must be its text ("adakv @ 128") or the result of winnow.method(…), not a {type(given).__name__}.'
    )


class NamedMethod:
    """A method string, read once: its parts are known, its budget and further parameters may be missing."""

    def __init__(self, name: str) -> None:
        """Raises UnknownMethod, UnknownParameter or MethodError, each with what exists or is allowed."""
        self.text, calls, self.budget = parse(name)
        self._preset = _preset(calls[0].name)
        self._groups = [_group(call, defaults) for call, defaults in _resolve(self._preset, calls)]

    @property
    def _keeps_all(self) -> bool:
        return self._preset.name == "full"

    @property
    def takes_budget(self) -> bool:
        """True if it divides a budget; "full" and some others say themselves what stays."""
        return not self._keeps_all and _allocator(_by_role(self._groups)).takes_budget

    def method(self, budget: int | str | None = None, parameters: Mapping[str, Value] = MappingProxyType({})) -> Method:
        """The method with its own budget or a given one, and with further parameters.

        Raises UnknownParameter, MethodError or BudgetError.
        """
        if self.budget is not None and budget is not None:
            raise MethodError(f"The budget is given twice, {self.budget!r} and {budget!r}; keep one.")
        groups = _with_parameters(self._groups, self.text, _renamed(parameters))
        parts = _by_role(groups)
        allocator = _allocator(parts)
        limit = _limit(self._preset.name, self._keeps_all, allocator, self.budget if budget is None else budget)
        canonical = "+".join(format_call(group.name, _differences(group)) for group in groups)
        return Method(canonical, _scorer(parts), allocator, _store(parts), limit)


def _by_role(groups: Iterable[_Group]) -> dict[str, Any]:
    return {_role(part): part for group in groups for part in group.chosen}


def _preset(name: str) -> Preset:
    found = known.preset(name)
    if found is not None:
        return found
    if known.part(ALIASES.get(name, name)) is not None:
        raise MethodError(f"{name!r} must follow a method: write for example 'snapkv+{name}'.")
    raise UnknownMethod(f"There is no method {name!r}: {closest(name, known.preset_names())}")


def _limit(name: str, keeps_all: bool, allocator: Allocator, budget: int | str | None) -> Budget:
    if keeps_all:
        if budget is not None:
            raise BudgetError(f"'full' keeps everything and takes no budget; drop budget={budget!r}.")
    elif not allocator.takes_budget:
        if budget is not None:
            rule = type(allocator).__name__
            raise BudgetError(f"{rule} decides by its own parameters and takes no budget; drop budget={budget!r}.")
    elif budget is None:
        raise BudgetError(
            f"{name!r} needs a budget: 128 (tokens per KV head), '2%' (of the prompt) "
            f"or '64MiB' (of one sequence). Give it separately or in the name: '{name} @ 128'."
        )
    return Budget.parse(budget)


def _resolve(preset: Preset, calls: Iterable[Call]) -> list[tuple[Call, list[Any]]]:
    """Every part of the string with its dataclasses; the order after the first is that of their roles."""
    first, *rest = (call._replace(name=ALIASES.get(call.name, call.name)) for call in calls)
    followers = sorted(((call, _part(call.name)) for call in rest), key=lambda found: ROLES.index(_role(found[1])))
    roles = [_role(part) for _, part in followers]
    if preset.name == "full" and not set(roles) <= {"channels", "bits"}:
        raise MethodError(
            "'full' keeps everything, so there is nothing to allocate; only spark, think, bits … follow it."
        )
    for role in sorted(set(roles)):
        names = [call.name for call, part in followers if _role(part) == role]
        if len(names) > 1:
            raise MethodError(f"{' and '.join(names)} do the same work ({_WORK[role]}); keep one of them.")
    own = _components(preset, replaced=roles)
    return [(first, own), *((call, [part]) for call, part in followers)]


def _part(name: str) -> Part:
    found = known.part(name)
    if found is None:
        known_names = closest(name, known.part_names())
        raise UnknownMethod(f"There is no part {name!r} to follow a method: {known_names}")
    return found.part


def _role(part: Part) -> str:
    """The work that a part does, one of ROLES."""
    if isinstance(part, Channels):
        return "channels"
    if isinstance(part, Precision):
        return "bits"
    if isinstance(part, Scorer):
        return "refinement" if isinstance(part, Refiner) else "score"
    if isinstance(part, HeadUnion):
        return "union"
    return "heads" if isinstance(part, HeadAllocator) else "layers"


def _kind(part: Part) -> PartKind:
    if isinstance(part, Channels | Precision):
        return "store"
    return "refiner" if isinstance(part, Scorer) else "allocator"


def _aliases(part: str) -> tuple[str, ...]:
    return tuple(alias for alias, name in ALIASES.items() if name == part)


def _components(preset: Preset, replaced: Iterable[str]) -> list[Any]:
    """The preset's own parts but those replaced by others."""
    if preset.name == "full":
        return [preset.scorer]
    scorer, allocator = preset.scorer, preset.allocator
    own: list[Part] = [scorer, scorer.base] if isinstance(scorer, Refiner) else [scorer]
    own += [allocator, allocator.across] if isinstance(allocator, HeadAllocator) else [allocator]
    return [part for part in own if _role(part) not in replaced]


def _scorer(parts: Mapping[str, Any]) -> Scorer:
    """One scorer from one that scores and at most one that refines."""
    scorer: Scorer = parts["score"]
    return replace(parts["refinement"], base=scorer) if "refinement" in parts else scorer


def _allocator(parts: Mapping[str, Any]) -> Allocator:
    """One allocator from at most one for the heads, at most one for the layers, and what heads that share slots do."""
    allocator: Allocator = parts.get("layers", Uniform())
    if "heads" in parts:
        allocator = replace(parts["heads"], across=allocator)
    return replace(parts["union"], across=allocator) if "union" in parts else allocator


def _store(parts: Mapping[str, Any]) -> Store:
    """One store from at most one choice of channels and one of bits."""
    if not parts.keys() & {"channels", "bits"}:
        return Dense()
    return Packed(parts.get("channels", AllChannels()), parts.get("bits", AsIs()))


def _offered(parts: Iterable[Any]) -> tuple[Parameter, ...]:
    """The parameters of several dataclasses, one of each name."""
    offered: dict[str, Parameter] = {}
    for part in parts:
        for found in parameters_of(part):
            offered.setdefault(found.name, found)
    return tuple(offered.values())


def _group(call: Call, defaults: list[Any]) -> _Group:
    """Applies the arguments written in a part of the string to that part only."""
    names = [p.name for p in _offered(defaults)]
    if len(call.positional) > len(names):
        raise MethodError(f"{call.name!r} takes at most {len(names)} arguments: {', '.join(names) or 'none'}.")
    given = dict(zip(names, call.positional, strict=False))
    named = _renamed(call.named)
    for key in named:
        if key in given:
            raise MethodError(f"{call.name!r} got {key!r} twice; keep one.")
    given |= named
    _reject_unknown(call.name, given, names)
    return _Group(call.name, frozenset(given), defaults, [_with(part, given) for part in defaults])


def _renamed(given: Mapping[str, Value]) -> dict[str, Value]:
    """Parameters by their present names. Raises MethodError where one is given by its earlier name, too."""
    for earlier, present in PARAMETER_ALIASES.items():
        if {earlier, present} <= given.keys():
            raise MethodError(f"{earlier!r} is the earlier name of {present!r}; keep one of them.")
    return {PARAMETER_ALIASES.get(key, key): value for key, value in given.items()}


def _with_parameters(groups: list[_Group], text: str, parameters: Mapping[str, Value]) -> list[_Group]:
    """Applies parameters given by keyword to every part that has them."""
    _reject_unknown(text, parameters, [p.name for g in groups for p in _offered(g.defaults)])
    for group in groups:
        for key in group.written & parameters.keys():
            raise MethodError(f"{key!r} is given twice, in {text!r} and by keyword; keep one.")
    return [g._replace(chosen=[_with(part, parameters) for part in g.chosen]) for g in groups]


def _with(part: Any, given: Mapping[str, Value]) -> Any:
    own = {p.name for p in parameters_of(part)}
    try:
        return replace(part, **{key: value for key, value in given.items() if key in own})
    except (TypeError, ValueError) as problem:
        if isinstance(problem, WinnowError):
            raise
        # A part that somebody else wrote.
        raise MethodError(f"{type(part).__name__}: {problem}") from problem


def _differences(group: _Group) -> dict[str, Value]:
    """The parameters of a group that are not at their defaults."""
    changed: dict[str, Value] = {}
    for default, chosen in zip(group.defaults, group.chosen, strict=True):
        changed |= differences(default, chosen)
    return changed


def _reject_unknown(owner: str, given: Iterable[str], there: Iterable[str]) -> None:
    there = list(there)
    for key in given:
        if key not in there:
            raise UnknownParameter(f"{owner!r} has no parameter {key!r}: {closest(key, there)}")
