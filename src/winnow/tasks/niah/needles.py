"""Needles with their questions: the published ones first, then others of the same forms."""

from __future__ import annotations

import random
from typing import NamedTuple

from winnow.tasks.niah import vocabulary as v


class Needle(NamedTuple):
    """Sentences to hide, and what is asked about them."""

    sentences: tuple[str, ...]
    """Hidden apart from each other."""
    question: str
    answers: tuple[str, ...]
    """Words that a right answer has."""
    choices: tuple[str, ...] = ()
    """Words of the right and of the wrong answer."""


SAN_FRANCISCO = Needle(
    ("The best thing to do in San Francisco is eat a sandwich and sit in Dolores Park on a sunny day.",),
    "What is the best thing to do in San Francisco?",
    ("sandwich", "Dolores Park", "sunny"),
)
"""Kamradt's (github.com/gkamradt/LLMTest_NeedleInAHaystack, MIT)."""

PIZZA = Needle(
    (
        "Figs are one of the secret ingredients needed to build the perfect pizza.",
        "Prosciutto is one of the secret ingredients needed to build the perfect pizza.",
        "Goat cheese is one of the secret ingredients needed to build the perfect pizza.",
    ),
    "What are the secret ingredients needed to build the perfect pizza?",
    ("fig", "prosciutto", "goat cheese"),
)
"""Three needles of the same repository."""

_JOHN_AND_MARY = (
    "John is 12 years old. Mary is 13 years old. "
    "Mary's favorite thing is to take a walk in Chaoyang Park and have a cup of Espresso in the evening. "
    "John's favorite thing is to play basketball at the local gym and enjoy a smoothie afterward."
)
_PASTIMES = ("basketball", "Chaoyang Park")

JOHN_AND_MARY = tuple(
    Needle((_JOHN_AND_MARY,), f"What is the favorite thing of the {word} one between John and Mary?", (key,), _PASTIMES)
    for word, key in zip(("younger", "older"), _PASTIMES, strict=True)
)
"""HeadKV's reasoning needle with its two questions (Fu et al. 2024, arXiv 2410.19258, figure 9)."""


def single(seed: int, number: int) -> Needle:
    """One sentence: the best thing to do in a city."""
    if seed == number == 0:
        return SAN_FRANCISCO
    rng = _rng("single", seed, number)
    city, (first, one), (second, two), (when, three) = map(rng.choice, (v.CITIES, v.TREATS, v.SIGHTS, v.TIMES))
    return Needle(
        (f"The best thing to do in {city} is {first} and {second} {when}.",),
        f"What is the best thing to do in {city}?",
        (one, two, three),
    )


def multi(seed: int, number: int) -> Needle:
    """Three sentences: the secret ingredients of a dish."""
    if seed == number == 0:
        return PIZZA
    rng = _rng("multi", seed, number)
    dish, chosen = rng.choice(v.DISHES), rng.sample(v.INGREDIENTS, 3)
    sentences = (f"{name} one of the secret ingredients needed to build the perfect {dish}." for name, _ in chosen)
    question = f"What are the secret ingredients needed to build the perfect {dish}?"
    return Needle(tuple(sentences), question, tuple(key for _, key in chosen))


def reasoning(seed: int, number: int) -> Needle:
    """Ages of two, and what each of them likes; of two with the same text, the second asks for the older one."""
    pair, older = divmod(number, 2)
    if seed == pair == 0:
        return JOHN_AND_MARY[older]
    rng = _rng("reasoning", seed, pair)
    names, ages = rng.sample(v.NAMES, 2), sorted(rng.sample(range(8, 80), 2))
    likes = rng.sample(v.PASTIMES, 2)
    ages_told = [f"{name} is {age} years old." for name, age in zip(names, ages, strict=True)]
    likes_told = [f"{name}'s favorite thing is to {like}." for name, (like, _) in zip(names, likes, strict=True)]
    rng.shuffle(ages_told)
    rng.shuffle(likes_told)
    asked = sorted(names, key=lambda name: rng.random())
    word = "older" if older else "younger"
    return Needle(
        (" ".join([*ages_told, *likes_told]),),
        f"What is the favorite thing of the {word} one between {asked[0]} and {asked[1]}?",
        (likes[older][1],),
        tuple(key for _, key in likes),
    )


def _rng(task: str, seed: int, number: int) -> random.Random:
    return random.Random(f"niah-{task}-{seed}-{number}")
