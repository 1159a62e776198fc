"""Names that are known: winnow's own, those that were registered, and those of installed packages."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import EntryPoint
from typing import Any

from winnow.allocate import Allocator
from winnow.composition.entry_points import installed, origin
from winnow.composition.records import NAME, record_of
from winnow.composition.registry import ALIASES, PARTS, PRESETS, NamedPart, Part, Preset
from winnow.errors import MethodError

_presets = {preset.name: preset for preset in PRESETS}
_parts = {part.name: part for part in PARTS}
_OURS = frozenset({*_presets, *_parts, *ALIASES})


def register(
    name: str,
    part: Part | type[Part],
    *,
    allocator: Allocator | None = None,
    summary: str | None = None,
    paper: str = "",
) -> None:
    """Registers a method, or a part of methods, under a name in this process.

    The name then works in `winnow.method`, with parameters and other parts. On a command line, pass `--plugin FILE`,
    where FILE calls this function. An installed package can declare an entry point of the group "winnow.methods"
    instead. Registering the same part again does nothing; a class that was defined again replaces the old one.

    Args:
        name: lower-case letters, digits, "_" and "-", a letter first.
        part: an object, whose fields are the defaults, or its class. A `Scorer` becomes a method. A `Refiner`,
            `Allocator`, `Channels` or `Precision` becomes a part that follows a method after a "+". All are frozen
            dataclasses; fields with `metadata=meaning("…")` are parameters.
        allocator: allocator of a scorer's method. Default: the same number of slots for every head.
        summary: one line on what the part does. Default: the first line of the class's docstring.
        paper: authors, year and arXiv id.

    Raises:
        MethodError: the name is not valid or is taken, or the part is not a part.
    """
    _add(record_of(name, part, allocator, summary, paper))


def preset(name: str) -> Preset | None:
    """The method of a name, also of an installed package. Raises MethodError where that cannot be loaded."""
    _load(name)
    return _presets.get(name)


def part(name: str) -> NamedPart | None:
    """The part of a name, also of an installed package. Raises MethodError where that cannot be loaded."""
    _load(name)
    return _parts.get(name)


def preset_names() -> list[str]:
    """Names of methods that are known, and those that installed packages would give."""
    return [*_presets, *_unloaded()]


def part_names() -> list[str]:
    """Names of parts that are known, and those that installed packages would give."""
    return [*_parts, *_unloaded()]


def all_presets() -> list[Preset]:
    """Methods that are known; those of installed packages once `load_installed` was called."""
    return list(_presets.values())


def all_parts() -> list[NamedPart]:
    """Parts that are known; those of installed packages once `load_installed` was called."""
    return list(_parts.values())


def load_installed() -> Iterator[str]:
    """Loads what installed packages bring; gives a line for each that cannot be used."""
    for name, entry in installed().items():
        if name in _OURS:
            yield _unusable(name, entry, "winnow has a method or part of this name")
        else:
            try:
                _load(name)
            except MethodError as problem:
                yield str(problem)


def _unloaded() -> list[str]:
    return [name for name in installed() if not _is_taken(name) and NAME.fullmatch(name)]


def _is_taken(name: str) -> bool:
    return name in _OURS or name in _presets or name in _parts


def _load(name: str) -> None:
    """Loads what an installed package has under a name that nothing else has."""
    if _is_taken(name):
        return
    entry = installed().get(name)
    if entry is None:
        return
    try:
        found = entry.load()
        # Its module may have registered the name itself, with more than a class says.
        if not _is_taken(name):
            _add(_record(name, found))
    except Exception as problem:
        # It is somebody else's code: whatever it raises, other methods go on working.
        raise MethodError(_unusable(name, entry, f"{type(problem).__name__}: {problem}")) from problem


def _record(name: str, found: Any) -> Preset | NamedPart:
    if isinstance(found, Preset):
        return record_of(name, found.scorer, found.allocator, found.summary, found.paper)
    if isinstance(found, NamedPart):
        return record_of(name, found.part, None, found.summary, found.paper)
    return record_of(name, found)


def _unusable(name: str, entry: EntryPoint, reason: str) -> str:
    return f"{origin(entry)} names a method {name!r} that cannot be used: {reason.rstrip('.')}."


def _add(record: Preset | NamedPart) -> None:
    before = _presets.get(record.name) or _parts.get(record.name)
    if record.name in _OURS:
        raise MethodError(f"{record.name!r} is the name of a method or part of winnow; choose another.")
    if before is not None and not _is_same(before, record):
        raise MethodError(f"{record.name!r} is taken by {_difference(before, record)}; choose another name.")
    # A class that was defined anew may be of another kind.
    (_parts if isinstance(record, Preset) else _presets).pop(record.name, None)
    if isinstance(record, Preset):
        _presets[record.name] = record
    else:
        _parts[record.name] = record


def _is_same(before: Preset | NamedPart, after: Preset | NamedPart) -> bool:
    """True for the same again, and for a class that was defined anew, as a cell of a notebook does."""
    old, new = _kind(before), _kind(after)
    anew = old is not new and (old.__module__, old.__qualname__) == (new.__module__, new.__qualname__)
    return before == after or anew


def _kind(record: Preset | NamedPart) -> type:
    return type(record.scorer if isinstance(record, Preset) else record.part)


def _difference(before: Preset | NamedPart, after: Preset | NamedPart) -> str:
    """The class that has a name, or what it was registered with where the class is the same."""
    kind = _kind(before)
    if kind is not _kind(after) or type(before) is not type(after):
        return f"{kind.__module__}.{kind.__qualname__}"
    pairs = zip(before._fields, before, after, strict=True)
    told = ", ".join(f"{name} {old!r}, not {new!r}" for name, old, new in pairs if old != new)
    return f"{kind.__module__}.{kind.__qualname__} with {told}"
