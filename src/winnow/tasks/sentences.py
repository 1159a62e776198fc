"""Sentences of the synthetic documents, as lists of lower-case words.

Statements end with their value and a full stop, with the words that identify
them shortly before, so that each one is a key (the words) and a value. Answers
restate, word for word, the statements that they rest on.
"""

from __future__ import annotations

import random

from winnow.tasks import vocabulary as v

Words = list[str]

_OPENINGS: tuple[tuple[str, ...], ...] = (
    ("everyone", "knows", "that"),
    ("people", "say", "that"),
    ("all", "over", "the", "village", "people", "know", "that"),
    ("remember", "that"),
    ("it", "is", "said", "that"),
)

# Values that filler sentences mention as things; a city is none.
_THINGS = tuple(value for value in v.VALUES if value not in v.ATTRIBUTE_VALUES["city"])


def _opening(rng: random.Random) -> tuple[str, ...]:
    return rng.choice(_OPENINGS) if rng.random() < 0.35 else ()


def favorite(rng: random.Random, person: str, attribute: str, value: str) -> Words:
    """State the favorite thing of a person."""
    return [*_opening(rng), *answer_favorite(person, attribute, value), "."]


def secret(rng: random.Random, kind: str, place: str, value: str) -> Words:
    """State a fact of a kind that a document holds once."""
    return [*_opening(rng), *answer_secret(kind, place, value), "."]


def comparison(rng: random.Random, pair: tuple[str, str], word: str, winner: str) -> Words:
    """State which person of a pair is the older (taller, ...) one."""
    return [*_opening(rng), *_compared(pair, word, winner), "."]


def _compared(pair: tuple[str, str], word: str, winner: str) -> Words:
    return ["between", pair[0], "and", pair[1], ",", "the", word, "one", "is", winner]


def assignment(rng: random.Random, name: str, value: str) -> Words:
    """State that a variable equals another variable or a color."""
    return [*_opening(rng), "variable", name, "equals", value, "."]


def filler(rng: random.Random, people: tuple[str, ...]) -> Words:
    """Write a sentence that answers nothing, though it may mention known words."""
    person = rng.choice(people) if rng.random() < 0.5 else rng.choice(v.NAMES)
    place, adjective = rng.choice(v.PLACES), rng.choice(v.ADJECTIVES)
    form = rng.randrange(6)
    if form == 0:
        move, time = rng.choice(v.MOVES), rng.choice(v.TIMES)
        return [person, move, "to", "the", adjective, place, time, "."]
    if form == 1:
        thing = rng.choice(_THINGS if rng.random() < 0.4 else v.OBJECTS)
        return [person, rng.choice(v.ACTIONS), "the", thing, "near", "the", place, "."]
    if form == 2:
        other, day = rng.choice(v.NAMES), rng.choice(v.DAYS)
        return ["on", day, person, "talked", "with", other, "at", "the", place, "."]
    if form == 3:
        weather, day = rng.choice(v.WEATHER), rng.choice(v.DAYS)
        return ["there", "was", weather, "over", "the", place, "on", day, "."]
    if form == 4:
        first, second = rng.sample(v.OBJECTS, 2)
        return ["the", adjective, first, "was", "near", "the", second, "."]
    thing, time = rng.choice(v.OBJECTS), rng.choice(v.TIMES)
    return [time, person, rng.choice(v.ACTIONS), "the", adjective, thing, "again", "."]


def ask_favorite(person: str, attribute: str) -> Words:
    """Ask for the favorite thing of a person."""
    return ["what", "is", "the", "favorite", attribute, "of", person, "?"]


def ask_secret(kind: str, place: str) -> Words:
    """Ask for the value of a fact that a document holds once."""
    return ["what", "is", "the", kind, "of", "the", place, "?"]


def ask_comparison(pair: tuple[str, str], word: str, attribute: str) -> Words:
    """Ask for the favorite thing of the older (taller, ...) one of two people."""
    head = ["what", "is", "the", "favorite", attribute, "of"]
    return [*head, "the", word, "one", "between", pair[0], "and", pair[1], "?"]


def ask_variable(name: str) -> Words:
    """Ask for the value at the end of a chain of variables."""
    return ["what", "is", "the", "value", "of", "variable", name, "?"]


def answer_favorite(person: str, attribute: str, value: str) -> Words:
    """Restate the favorite thing of a person."""
    return ["the", "favorite", attribute, "of", person, "is", value]


def answer_secret(kind: str, place: str, value: str) -> Words:
    """Restate a fact that a document holds once."""
    return ["the", kind, "of", "the", place, "is", value]


def answer_comparison(pair: tuple[str, str], word: str, winner: str, attribute: str, value: str) -> Words:
    """Answer in two steps: the person, then that person's favorite thing."""
    return [*_compared(pair, word, winner), ",", *answer_favorite(winner, attribute, value)]


def answer_chain(links: list[tuple[str, str]]) -> Words:
    """Answer with every step of a chain of variables."""
    words: Words = []
    for name, value in links:
        words += ["variable", name, "equals", value, ","]
    return words[:-1]
