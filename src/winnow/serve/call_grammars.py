"""Grammars of answers with calls of tools, in llguidance's dialect of Lark. A mark may be one token, or be spelled."""

from __future__ import annotations

import json
from collections.abc import Iterable

from winnow.serve.calls import CLOSE, OPEN
from winnow.serve.rules import SPACE, Rules, Special, written


def marked_grammar(rules: Rules, special: Special) -> str:
    """Answers with calls between marks."""
    if rules.free:
        others = _tokens(number for name, number in special.items() if name not in (OPEN, CLOSE))
        start = [
            f"start: {_either('begun call end', others and f'TEXT {others}')}* TEXT",
            f"begun: {_either('head', _marking(OPEN, special, 'TEXT '))}",
            # Text ends with the first mark in it, behind which nothing but a call may stand.
            f"head[lazy]: TEXT {json.dumps(OPEN)}",
            "TEXT: /(?s:.*)/",
        ]
    else:
        more = "" if rules.once else " (WS? begun call end)*"
        start = [
            *_start(rules, "calls"),
            f"calls: begun call end{more}",
            f"begun: {_either(json.dumps(OPEN), _marking(OPEN, special))}",
        ]
    end = _either(json.dumps(CLOSE), _marking(CLOSE, special))
    return _lark([*start, "call: WS? object WS?", f"end: {end}", *_object(rules, "arguments")])


def bare_grammar(rules: Rules, special: Special) -> str:
    """Answers that are a call and nothing else, or do not begin as an object does."""
    if rules.free:
        # Special tokens are left out before a call is looked for.
        others = _tokens(special.values())
        start = [
            f"start: lead* (object | FIRST{f' ({others} REST?)*' if others else ''})?",
            f"lead: {_either('LEAD', others)}",
            r"LEAD: /[ \t\r\n]+/",
            r"FIRST: /[^{ \t\r\n](?s:.*)/",
            "REST: /(?s:.+)/",
        ]
    else:
        start = _start(rules, "object")
    return _lark([*start, *_object(rules, "parameters")])


def _lark(lines: Iterable[str]) -> str:
    return "\n".join(["%llguidance {}", *lines, f"WS: /{SPACE}/"])


def _start(rules: Rules, calls: str) -> list[str]:
    """The rule of answers that are calls, or follow a schema."""
    if rules.forced or rules.answer is None:
        return [f"start: {calls}"]
    return [f"start: answer | {calls}", f"answer: %json {written(rules.answer)}"]


def _object(rules: Rules, key: str) -> list[str]:
    """Rules of {"name": …, "arguments": {…}}."""
    functions = _either(*(f"function_{place}" for place in range(len(rules.functions))))
    lines = [f'object: "{{" WS? {_spaced("name", ":")} WS? {functions} WS? "}}"']
    for place, (name, schema) in enumerate(rules.functions.items()):
        lines += [
            f"function_{place}: {_spaced(name, ',', key, ':')} WS? arguments_{place}",
            # A document of its own, which refers to its parts as it did before.
            f"arguments_{place}: %json {written(schema)}",
        ]
    return lines


def _spaced(*parts: str) -> str:
    """Names and signs of JSON, perhaps with space between them."""
    return " WS? ".join(json.dumps(each if each in ",:" else json.dumps(each)) for each in parts)


def _marking(mark: str, special: Special, before: str = "") -> str:
    """A mark that is a token, behind something; empty where it is none."""
    return f"{before}{_tokens([special[mark]])}" if mark in special else ""


def _tokens(numbers: Iterable[int]) -> str:
    """Any of some tokens; empty where there are none."""
    listed = ",".join(map(str, numbers))
    return listed and f"<[{listed}]>"


def _either(*alternatives: str) -> str:
    """One of several, without those that are empty."""
    return f"({' | '.join(each for each in alternatives if each)})"
