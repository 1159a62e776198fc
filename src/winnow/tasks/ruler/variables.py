"""RULER's variable tracking: a chain of assignments between lines of noise, after a solved example of the same."""

from __future__ import annotations

import random
from string import ascii_uppercase
from typing import NamedTuple

from winnow.tasks.benchmark import Request
from winnow.tasks.example import Example
from winnow.tasks.haystack.drawing import Draw
from winnow.tasks.haystack.fitting import Pieces, Write, largest_fitting
from winnow.tasks.ruler.templates import NOISE, VARIABLES

HOPS = 4
MAX_NEW_TOKENS = 30
LETTERS, SHOT_LETTERS = 5, 3
"""Letters of a variable's name, in the text and in the solved example."""
SHOT_LENGTH, SHOT_STEP = 500, 5
"""Tokens of the solved example with room for an answer; lines of noise that it has a multiple of."""

PIECES = Pieces(HOPS + 1, 25.0)


class _Chain(NamedTuple):
    names: list[str]
    value: str

    @property
    def lines(self) -> list[str]:
        """The first name gets the value, every other one its predecessor."""
        links = zip(self.names[1:], self.names[:-1], strict=True)
        return [f"VAR {self.names[0]} = {self.value}", *(f"VAR {name} = VAR {before} " for name, before in links)]


def shot_lines(request: Request) -> int:
    """Lines of noise in the solved example: as many as RULER's length for it has room for, by the tokenizer."""
    rng = random.Random("ruler-vt-shot")
    chain, shares = _chain(SHOT_LETTERS, rng), _shares(rng)

    def size(steps: int) -> int:
        return request.count_tokens(_solved(chain, shares, steps * SHOT_STEP)) + MAX_NEW_TOKENS

    return SHOT_STEP * (largest_fitting(size, SHOT_LENGTH, Pieces(1, 25.0 * SHOT_STEP)) or 1)


def variables_example(draw: Draw, shot: int) -> Write:
    """Examples of a draw, by the lines of noise around the chain. shot: lines of noise in the solved example."""
    rng = draw.rng("chains")
    solved = _solved(_chain(SHOT_LETTERS, rng), _shares(rng), shot)
    chain, shares = _chain(LETTERS, rng), _shares(rng)
    blanks = {"query": chain.value, "count": len(chain.names)}

    def write(count: int) -> Example:
        context = VARIABLES.context.format(context=_hidden(chain, shares, count))
        return Example(
            name=draw.name,
            context=f" {solved}\n\n\n\n{context}",
            question=VARIABLES.question.format(**blanks),
            answers=tuple(chain.names),
            answer_prefix=VARIABLES.answer_prefix.format(**blanks),
            facts={"length": draw.length, "haystack": "noise"},
        )

    return write


def _chain(letters: int, rng: random.Random) -> _Chain:
    names: dict[str, None] = {}
    while len(names) <= HOPS:
        name = "".join(rng.choices(ascii_uppercase, k=letters))
        # No name is the word of the assignments themselves.
        if name != "VAR":
            names[name] = None
    return _Chain(list(names), str(rng.randrange(10_000, 99_999)))


def _shares(rng: random.Random) -> list[float]:
    return [rng.random() for _ in range(HOPS + 1)]


def _hidden(chain: _Chain, shares: list[float], count: int) -> str:
    """The chain's lines, in order, before different ones of so many lines of noise."""
    places = _different([int(share * count) for share in sorted(shares)], count)
    lines = [f"{NOISE}\n"] * count
    for place, line in reversed(list(zip(places, chain.lines, strict=True))):
        lines.insert(place, line)
    # Blanks and all as RULER has them.
    return " ".join(lines)


def _different(places: list[int], count: int) -> list[int]:
    """Ascending places below `count`, moved apart where two are the same."""
    for index in range(1, len(places)):
        places[index] = max(places[index], places[index - 1] + 1)
    for index in reversed(range(len(places))):
        places[index] = min(places[index], count - len(places) + index)
    return places


def _solved(chain: _Chain, shares: list[float], count: int) -> str:
    """A whole prompt with its answer."""
    blanks = {"query": chain.value, "count": len(chain.names), "context": _hidden(chain, shares, count)}
    return "".join(part.format(**blanks) for part in VARIABLES) + " " + " ".join(chain.names)
