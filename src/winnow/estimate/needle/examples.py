"""Needles with their questions and right answers.

Two sources ship with Winnow, in words of its own: prose for models that read English, and the forms of `winnow.tasks`
for the bundled model. A user's come from a JSONL file.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from winnow.errors import FileError, JsonError
from winnow.estimate.errors import NeedleError
from winnow.estimate.needle.settings import NeedleKind
from winnow.files import read_text
from winnow.strict_json import parse_lines
from winnow.tasks import sentences as forms
from winnow.tasks import vocabulary as v
from winnow.tasks.prompts import to_text


@dataclass(frozen=True)
class NeedleExample:
    """A needle and a question that only the needle answers.

    needle: goes into the haystack as it is. span: the part of the needle that a head gets a score for looking at (the
    whole needle for retrieval; only the right answer, neither the reasoning facts nor the wrong answer, for R2).
    restates: the answer repeats statements word for word before it comes to the value, which alone is judged.
    avoid: words that no other sentence of the haystack may hold, because it could answer the question as well.
    """

    needle: str
    span: str
    question: str
    answer: str
    restates: bool = False
    avoid: frozenset[str] = frozenset()

    def judged(self, generated: str) -> str:
        """The part of a generated answer that is compared with `answer`."""
        return re.split(r"\bis\b", generated)[-1] if self.restates else generated


class ExampleSource(Protocol):
    """A source of examples of every kind."""

    def examples(self, kind: NeedleKind, seed: int) -> Sequence[NeedleExample]:
        """The examples, the same for the same seed."""


class ProseExamples:
    """Examples in plain English, of the papers' kinds; the seed changes nothing."""

    def examples(self, kind: NeedleKind, seed: int) -> Sequence[NeedleExample]:
        """Three retrieval examples, or two retrieval-reasoning ones that share a needle and differ in who is asked."""
        return _OLDER_AND_YOUNGER if kind is NeedleKind.R2 else _RETRIEVAL


class TaskExamples:
    """Examples of the forms that the bundled model understands, with words drawn from the seed."""

    def __init__(self, count: int = 10) -> None:
        """count: examples of every kind, an even number."""
        self.count = count

    def examples(self, kind: NeedleKind, seed: int) -> Sequence[NeedleExample]:
        """As many secrets as favorites for retrieval; comparisons, the first or second person winning, for R2."""
        rng = random.Random(f"needle-{kind == NeedleKind.R2}-{seed}")
        if kind is NeedleKind.R2:
            return [_comparison(rng, index % 2) for index in range(self.count)]
        return [_secret(rng) if index % 2 else _favorite(rng) for index in range(self.count)]


class FileExamples:
    """Examples of a JSONL file."""

    def __init__(self, path: Path) -> None:
        """Reads the file. Raises NeedleError, naming the line, where it holds something else."""
        self._examples = read_examples(path)

    def examples(self, kind: NeedleKind, seed: int) -> Sequence[NeedleExample]:
        """All of them, whatever the kind and seed."""
        return self._examples


def read_examples(path: Path) -> list[NeedleExample]:
    """One {"needle", "question", "answer", optional "span"} a line; without a span the whole needle counts.

    Raises NeedleError with the line's number.
    """
    try:
        found = [_example(f"{path}, line {number}", entry) for number, entry in parse_lines(read_text(path))]
    except JsonError as problem:
        raise NeedleError(f'{path}, {problem}; give an object with "needle", "question" and "answer".') from None
    except FileError as problem:
        raise NeedleError(str(problem)) from None
    if not found:
        raise NeedleError(f"{path} has no examples; write one JSON object per line.")
    return found


_FIELDS = ("needle", "question", "answer", "span")


def _example(where: str, entry: dict[str, Any]) -> NeedleExample:
    for name in entry.keys() - set(_FIELDS):
        raise NeedleError(f"{where}: there is no field {name!r}; there are {', '.join(_FIELDS)}.")
    needle, question, answer = (_text(where, entry, name) for name in _FIELDS[:3])
    span = _text(where, entry, "span") if "span" in entry else needle
    if span not in needle:
        raise NeedleError(f"{where}: the span is not part of the needle; copy it from there, letter by letter.")
    return NeedleExample(needle, span, question, answer)


def _text(where: str, entry: dict[str, Any], name: str) -> str:
    value = entry.get(name)
    if not isinstance(value, str) or not value.strip():
        raise NeedleError(f'{where}: "{name}" is {"missing" if name not in entry else "empty or not text"}.')
    return value.strip()


def _secret(rng: random.Random) -> NeedleExample:
    kind, place, value = rng.choice(v.SECRETS), rng.choice(v.PLACES), rng.choice(v.VALUES)
    statement = _statement(forms.answer_secret(kind, place, value))
    return NeedleExample(
        statement,
        statement,
        to_text(forms.ask_secret(kind, place)),
        value,
        restates=True,
        avoid=frozenset({kind, place}),
    )


def _favorite(rng: random.Random) -> NeedleExample:
    person, attribute = rng.choice(v.NAMES), rng.choice(v.ATTRIBUTES)
    value = rng.choice(v.ATTRIBUTE_VALUES[attribute])
    statement = _statement(forms.answer_favorite(person, attribute, value))
    question = to_text(forms.ask_favorite(person, attribute))
    return NeedleExample(statement, statement, question, value, restates=True, avoid=frozenset({person}))


def _comparison(rng: random.Random, winning: int) -> NeedleExample:
    """r, c1 and c2 in the order of the paper's Fig. 9: who is older, then each one's favorite."""
    first, second = rng.sample(v.NAMES, 2)
    pair = (first, second)
    word, attribute = rng.choice(v.COMPARATIVES), rng.choice(v.ATTRIBUTES)
    values = rng.sample(v.ATTRIBUTE_VALUES[attribute], 2)
    reason = _statement(["between", first, "and", second, ",", "the", word, "one", "is", pair[winning]])
    claims = [
        _statement(forms.answer_favorite(person, attribute, value)) for person, value in zip(pair, values, strict=True)
    ]
    question = to_text(forms.ask_comparison(pair, word, attribute))
    needle = " ".join([reason, *claims])
    return NeedleExample(needle, claims[winning], question, values[winning], restates=True, avoid=frozenset(pair))


def _statement(words: Sequence[str]) -> str:
    return to_text([*words, "."])


def _retrieval(needle: str, question: str, answer: str) -> NeedleExample:
    return NeedleExample(needle, needle, question, answer)


_RETRIEVAL = (
    _retrieval(
        "The nicest way to spend a free morning in Ostervik is to rent a green rowing boat and eat warm cinnamon "
        "rolls on the lighthouse steps.",
        "What is the nicest way to spend a free morning in Ostervik?",
        "rent a green rowing boat and eat warm cinnamon rolls on the lighthouse steps",
    ),
    _retrieval(
        "To open the vault of the Marlow clock museum, one turns the brass sundial twice to the left and hums the "
        "first line of a lullaby.",
        "How does one open the vault of the Marlow clock museum?",
        "turn the brass sundial twice to the left and hum the first line of a lullaby",
    ),
    _retrieval(
        "Professor Ilka Brandt keeps her only copy of the silver atlas inside a hollow pumpkin on the roof of the "
        "old bakery.",
        "Where does Professor Ilka Brandt keep her only copy of the silver atlas?",
        "inside a hollow pumpkin on the roof of the old bakery",
    ),
)

_REASON = "Tessa is 31 years old. Rowan is 27 years old."
_TESSA = "Tessa's favorite pastime is to paint tiny wooden ships and listen to the rain in the attic."
_ROWAN = "Rowan's favorite pastime is to bake rye bread at dawn and share it with the ferry crew."
_PAIR = f"{_REASON} {_TESSA} {_ROWAN}"

_OLDER_AND_YOUNGER = (
    NeedleExample(_PAIR, _ROWAN, "What is the favorite pastime of the younger one between Tessa and Rowan?", _ROWAN),
    NeedleExample(_PAIR, _TESSA, "What is the favorite pastime of the older one between Tessa and Rowan?", _TESSA),
)
