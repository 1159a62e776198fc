"""Names of files and folders that results get where other programs look for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain, count

from winnow.estimate.journal import fingerprint

_LONGEST = 200
"""Bytes; file systems take 255, and some names get a beginning and an ending."""


def short(name: str) -> str:
    """The name; of a long one the beginning, and a hash of the whole."""
    if len(name.encode()) <= _LONGEST:
        return name
    mark = f"~{fingerprint(name)}"
    return name.encode()[: _LONGEST - len(mark)].decode(errors="ignore") + mark


def file_names(names: Iterable[str], safe: Callable[[str], str]) -> dict[str, str]:
    """The name of a file for each, without what cannot stand in one (`safe`), and no two the same."""
    found: dict[str, str] = {}
    for name in names:
        wanted = short(safe(name))
        candidates = chain([wanted], (f"{wanted}_{number}" for number in count(2)))
        found[name] = next(each for each in candidates if each not in found.values())
    return found
