"""RULER's eight tasks of needles: values by their keys, between lines of noise, in essays, or among other needles."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Literal, NamedTuple

from winnow.tasks.example import Example, Fact
from winnow.tasks.haystack.background import Background
from winnow.tasks.haystack.drawing import Draw
from winnow.tasks.haystack.fitting import Pieces, Write
from winnow.tasks.haystack.splitting import split_sentences
from winnow.tasks.ruler.templates import NEEDLE, NEEDLES, NOISE, ONE_NEEDLE
from winnow.tasks.ruler.words import adjectives, nouns

Kind = Literal["numbers", "words", "uuids"]

DEPTHS = tuple(round(100 * step / 39) for step in range(40))
"""Percents of an essay's sentences before a needle."""


@dataclass(frozen=True)
class NeedleTask:
    """A task of needles; at least as many keys as are asked for."""

    haystack: Literal["noise", "essays", "needles"]
    value_kind: Kind = "numbers"
    key_kind: Kind = "words"
    keys: int = 1
    values: int = 1
    """Values of every key."""
    queries: int = 1
    """Keys that are asked for."""

    @property
    def pieces(self) -> Pieces:
        """Words of essays, or lines."""
        each = {"noise": 25.0, "essays": 1.3, "needles": 25.0 if self.key_kind == "words" else 75.0}
        return Pieces(1, each[self.haystack])


class _Needle(NamedTuple):
    key: str
    value: str
    kind: Kind

    def __str__(self) -> str:
        return NEEDLE.format(kind=self.kind, key=self.key, value=self.value)


class _Told(NamedTuple):
    """A haystack with its needles."""

    text: str
    depths: list[float]
    """Percents of the haystack before each needle."""


def needle_example(task: NeedleTask, draw: Draw, essays: Background) -> Write:
    """Examples of a draw, by the size of their haystack."""
    rng, fresh = draw.rng("needles"), _Fresh()
    keys = [fresh(task.key_kind, rng) for _ in range(task.keys)]
    needles = [_Needle(key, fresh(task.value_kind, rng), task.value_kind) for key in keys for _ in range(task.values)]
    queries = rng.sample(keys, task.queries)
    answers = tuple(needle.value for key in queries for needle in needles if needle.key == key)
    rng.shuffle(needles)
    tell = _among_sentences(needles, draw, essays) if task.haystack == "essays" else _among_lines(task, needles, draw)
    single = len(answers) == 1
    kind = task.value_kind[:-1] if single else task.value_kind
    template, query = (ONE_NEEDLE if single else NEEDLES), _listed(queries)

    def write(count: int) -> Example:
        told = tell(count)
        facts: dict[str, Fact] = {"length": draw.length}
        if single:
            place = next(index for index, needle in enumerate(needles) if needle.value == answers[0])
            facts["depth"] = told.depths[place]
        facts["haystack"] = essays.name if task.haystack == "essays" else task.haystack
        return Example(
            name=draw.name,
            context=template.context.format(kind=kind, context=told.text),
            question=template.question.format(kind=kind, query=query),
            answers=answers,
            answer_prefix=template.answer_prefix.format(kind=kind, query=query),
            facts=facts,
        )

    return write


def _among_sentences(needles: list[_Needle], draw: Draw, essays: Background) -> Callable[[int], _Told]:
    """Needles at different depths of a text that is cut after so many words."""
    depths = sorted(draw.rng("depths").sample(DEPTHS, len(needles)))

    def tell(count: int) -> _Told:
        sentences = split_sentences(" ".join(essays.words(count)))
        # Rounding down as RULER does, in whole numbers.
        ends = [len(sentences) * depth // 100 for depth in depths]
        parts, start = [], 0
        for end, needle in zip(ends, needles, strict=True):
            parts += [" ".join(sentences[start:end]), str(needle)]
            start = end
        return _Told(" ".join([*parts, " ".join(sentences[start:])]), [float(depth) for depth in depths])

    return tell


def _among_lines(task: NeedleTask, needles: list[_Needle], draw: Draw) -> Callable[[int], _Told]:
    """Needles anywhere before the last of so many lines."""
    rng = draw.rng("places")
    shares = sorted(rng.random() for _ in needles)
    others = _Others(task, {needle.key for needle in needles}, draw) if task.haystack == "needles" else None

    def tell(count: int) -> _Told:
        lines = [NOISE] * count if others is None else others.first(count)
        places = [int(share * count) for share in shares]
        for place, needle in reversed(list(zip(places, needles, strict=True))):
            lines.insert(place, str(needle))
        return _Told("\n".join(lines), [round(100 * place / count, 1) for place in places])

    return tell


class _Others:
    """Needles that nobody asks for; their keys are none of the taken ones."""

    def __init__(self, task: NeedleTask, taken: set[str], draw: Draw) -> None:
        self._rest = self._without_end(task, taken, draw.rng("others"))
        self._lines: list[str] = []

    def first(self, count: int) -> list[str]:
        self._lines += islice(self._rest, max(0, count - len(self._lines)))
        return self._lines[:count]

    def _without_end(self, task: NeedleTask, taken: set[str], rng: random.Random) -> Iterator[str]:
        fresh = _Fresh(taken)
        while True:
            key, value = fresh(task.key_kind, rng), _drawn(task.value_kind, rng)
            yield str(_Needle(key, value, task.value_kind))


class _Fresh:
    """Keys and values that were not drawn before: RULER's are not either, but for bad luck."""

    def __init__(self, taken: set[str] | None = None) -> None:
        self._taken = set(taken or ())

    def __call__(self, kind: Kind, rng: random.Random) -> str:
        while (found := _drawn(kind, rng)) in self._taken:
            pass
        self._taken.add(found)
        return found


def _drawn(kind: Kind, rng: random.Random) -> str:
    if kind == "numbers":
        return str(rng.randint(10**6, 10**7 - 1))
    if kind == "words":
        return f"{rng.choice(adjectives())}-{rng.choice(nouns())}"
    return str(uuid.UUID(int=rng.getrandbits(128), version=4))


def _listed(queries: list[str]) -> str:
    """One key, or several with "and" before the last."""
    return queries[0] if len(queries) == 1 else f"{', '.join(queries[:-1])}, and {queries[-1]}"
