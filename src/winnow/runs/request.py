"""The request of a run that several commands made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from winnow.estimate.journal import fingerprint

_TEXTS = "texts"


def joined(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """All that two commands asked of a run: the most examples, every task and length; None sets no limit.

    The hash of texts is that of a command which asked for all of it, or one of both hashes.
    """
    found = {**first, **second}
    for name, join in {"examples": _most, "tasks": _union, "lengths": _union}.items():
        if name in found:
            found[name] = join(first.get(name), second.get(name))
    if _TEXTS in found:
        of_all = [asked[_TEXTS] for asked in (first, second) if _TEXTS in asked and _is_all(found, asked)]
        found[_TEXTS] = of_all[0] if of_all else fingerprint([first.get(_TEXTS), second.get(_TEXTS)])
    return found


def _most(first: object, second: object) -> int | None:
    return max(first, second) if isinstance(first, int) and isinstance(second, int) else None


def _union(first: object, second: object) -> object:
    """Both of two lists between commas."""
    if first == second:
        return first
    if not isinstance(first, str) or not isinstance(second, str):
        return None
    known, others = _parts(first), _parts(second)
    return ",".join([first, *(part for part in others if part not in known)])


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")]


def _is_all(found: Mapping[str, Any], asked: Mapping[str, Any]) -> bool:
    return all(value == asked.get(name) for name, value in found.items() if name != _TEXTS)
