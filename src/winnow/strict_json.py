"""JSON that others wrote, read strictly: whatever is wrong with it is one exception, whose text says what and where."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any, NoReturn

from winnow.errors import JsonError

DEEPEST = 100
"""Lists and objects in each other, at most."""


def parse(text: str) -> Any:
    """The value of a JSON text.

    Raises JsonError: no JSON; nested deeper than `DEEPEST`; NaN, infinite numbers or such of thousands of digits; a key
    twice in one object; half a surrogate pair.
    """
    try:
        value = json.loads(text, parse_constant=_no_number, parse_float=_finite, object_pairs_hook=_without_repetition)
    except json.JSONDecodeError as problem:
        place = f"line {problem.lineno}, column {problem.colno}" if "\n" in text else f"column {problem.colno}"
        raise JsonError(f"not JSON ({problem.msg} at {place})") from None
    except RecursionError:
        raise JsonError(f"nested deeper than {DEEPEST} levels") from None
    except ValueError as problem:
        # Python reads no whole numbers of more than 4,300 digits.
        raise problem if isinstance(problem, JsonError) else JsonError("a number of too many digits") from None
    _check_depth(value)
    _check_text(text, value)
    return value


def parse_object(text: str) -> dict[str, Any]:
    """Like `parse`. Raises JsonError for what is no object, too."""
    value = parse(text)
    if not isinstance(value, dict):
        raise JsonError(f"not a JSON object, but {_KINDS[type(value)]}")
    return value


def parse_lines(text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Objects of JSON lines with the numbers of their lines, from 1; blank lines do not count.

    Raises JsonError, naming the line.
    """
    # Only at line feeds: other separators, as U+2028, may stand in a JSON text.
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            try:
                yield number, parse_object(line)
            except JsonError as problem:
                raise JsonError(f"line {number}: {problem}") from None


_KINDS = {
    list: "a list",
    str: "a text",
    int: "a number",
    float: "a number",
    bool: "true or false",
    type(None): "null",
}


def _no_number(name: str) -> NoReturn:
    raise JsonError(f"{name}, which is no JSON")


def _finite(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise JsonError(f"the number {digits[:40]}, which is too large")
    return value


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise JsonError(f"the key {name[:40]!r} twice in one object")
        found[name] = value
    return found


def _check_depth(value: Any) -> None:
    level, depth = [value], 0
    while level := [each for each in level if isinstance(each, dict | list)]:
        depth += 1
        if depth > DEEPEST:
            raise JsonError(f"nested deeper than {DEEPEST} levels")
        level = [part for each in level for part in (each.values() if isinstance(each, dict) else each)]


def _check_text(text: str, value: Any) -> None:
    """Escapes can spell half a surrogate pair, which no encoding can write; others stand as pairs and are fine."""
    if "\\ud" not in text and "\\uD" not in text:
        return
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        raise JsonError("half a surrogate pair (as \\ud800), which is no text") from None
