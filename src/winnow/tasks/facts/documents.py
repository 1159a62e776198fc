"""Documents in plain English with facts hidden in them, and the questions that only these facts answer."""

from __future__ import annotations

import random
from itertools import islice
from typing import NamedTuple

from winnow.tasks.document import Document, Question
from winnow.tasks.haystack.prose import write_prose

_ROOMS = ("mayor's office", "old bakery", "museum cellar", "pharmacy", "captain's cabin", "bank at the corner")
_SHIPS = ("Amalia", "North Wind", "Sturgeon", "Good Hope", "Marigold", "Three Brothers")
_PEOPLE = (
    "Judith Marsh",
    "Oskar Lind",
    "Pilar Ruiz",
    "Henry Dodd",
    "Wanda Kessel",
    "Tomas Berg",
    "Irene Foss",
    "Abel Quist",
)
_VILLAGES = ("Orlamunde", "Tresk", "Balvany", "Quillon", "Hastrup", "Merrowby", "Sandvika", "Ostrow")
_PETS = ("parrot", "donkey", "tortoise", "greyhound", "goat", "hedgehog")
_PET_NAMES = ("Biscuit", "Professor", "Thimble", "Comet", "Pepper", "Juniper", "Domino", "Walnut")
_DISHES = ("smoked eel", "onion soup", "plum dumplings", "fried mushrooms", "rice pudding", "pickled herring")


class Fact(NamedTuple):
    """A sentence, and the question that it answers."""

    sentence: str
    question: Question


def fact_document(seed: int, words: int) -> Document:
    """So many words of prose, in which six facts of six kinds stand at random places."""
    rng = random.Random(f"facts-{seed}")
    facts = _facts(rng)
    sentences = _prose(seed, words)
    for place, fact in zip(sorted(rng.sample(range(1, len(sentences)), len(facts)), reverse=True), facts, strict=True):
        sentences.insert(place, fact.sentence)
    return Document(" ".join(sentences), tuple(fact.question for fact in facts))


def _prose(seed: int, words: int) -> list[str]:
    sentences: list[str] = []
    for sentence in islice(write_prose(seed), words):
        words -= len(sentence.split())
        if words < 0:
            break
        sentences.append(sentence)
    return sentences


def _facts(rng: random.Random) -> list[Fact]:
    """One of every kind, in random order, about six people and things."""
    owner, cook, traveler = rng.sample(_PEOPLE, 3)
    room, shop = rng.sample(_ROOMS, 2)
    ship, pet = rng.choice(_SHIPS), rng.choice(_PETS)
    code, number, year = (
        str(rng.randrange(10_000, 100_000)),
        str(rng.randrange(2_000, 10_000)),
        str(rng.randrange(1701, 1900)),
    )
    name, village, dish = rng.choice(_PET_NAMES), rng.choice(_VILLAGES), rng.choice(_DISHES)
    facts = [
        _fact(f"The safe in the {room} opens with the code {code}.", f"Which code opens the safe in the {room}?", code),
        _fact(
            f"The telephone number of the {shop} is {number}.", f"What is the telephone number of the {shop}?", number
        ),
        _fact(f"The ferry {ship} was built in the year {year}.", f"In which year was the ferry {ship} built?", year),
        _fact(f"{owner} keeps a {pet} called {name}.", f"What is the {pet} of {owner} called?", name),
        _fact(f"{traveler} was born in the village of {village}.", f"In which village was {traveler} born?", village),
        _fact(f"{cook} likes {dish} better than any other dish.", f"Which dish does {cook} like best?", dish),
    ]
    rng.shuffle(facts)
    return facts


def _fact(sentence: str, question: str, answer: str) -> Fact:
    return Fact(sentence, Question("fact", f"{question} Answer in a few words.", answer))
