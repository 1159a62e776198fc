"""Candidates for the next tokens of an answer: what came, in prompt and answer so far, behind the same last tokens.

Answers that quote, edit or list what a prompt says repeat stretches of it. A model checks several candidates in one
pass, which on a CPU takes little longer than a token: it reads the weights once for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

MOST = 15
"""Candidates at a time, where nothing else is said."""
FEWEST = 3
"""Candidates at first, and after some that were wrong."""
ALIKE = 2
"""Last tokens that must have come before, at least."""
SURELY = 6
"""The same where candidates that are wrong cost another pass, or much time."""
_LOOKED_AT = 8
"""Last tokens that are compared, at most: of several places, the one with the most in common is believed."""
_PLACES = 32
"""Places that are compared, the latest ones."""


class PromptLookup:
    """The tokens of a prompt and its answer, in which the last ones are looked up. See "prompt lookup decoding"."""

    def __init__(self, tokens: Sequence[int], most: int) -> None:
        """tokens: the prompt's. most: candidates at a time, at most."""
        self._tokens = list(tokens)
        self._held = torch.tensor(self._tokens, dtype=torch.int64, device="cpu")
        self._most = most
        self._next = min(FEWEST, most)

    def say(self, token: int) -> None:
        """Adds the next token of the answer."""
        if len(self._tokens) == len(self._held):
            self._held = torch.cat([self._held, self._held.new_empty(max(64, len(self._held) // 8))])
        self._held[len(self._tokens)] = token
        self._tokens.append(token)

    def candidates(self, room: int, alike: int = ALIKE) -> list[int]:
        """The tokens that may come next, `room` at most, behind so many last tokens that came before, or more."""
        most = min(self._next, room)
        place = self._latest(alike) if most > 0 else None
        if place is None:
            return []
        found = self._tokens[place : place + most]
        # What is said again and again goes on so.
        return [found[each % len(found)] for each in range(most)]

    def learn(self, given: int, right: int) -> None:
        """Takes note of how many of the candidates given were right: more are given next time if all of them were."""
        self._next = min(self._most, 2 * given + 1 if right == given else FEWEST)

    def _latest(self, alike: int) -> int | None:
        """The place behind the last tokens where they came before; None where they did not."""
        count = len(self._tokens)
        if count <= ALIKE:
            return None
        before, last = self._tokens[-ALIKE:]
        # In one sweep of all tokens, without Python in between.
        held = self._held[: count - 1]
        found = ((held[1:] == last) & (held[:-1] == before)).nonzero()[-_PLACES:, 0].tolist()
        places = [(self._in_common(each + ALIKE), each + ALIKE) for each in found]
        common, place = max(places, default=(0, 0))
        return place if common >= alike else None

    def _in_common(self, place: int) -> int:
        """Number of tokens before a place that are the last ones, as far as it is looked at."""
        most = min(_LOOKED_AT, place)
        pairs = zip(reversed(self._tokens[place - most : place]), reversed(self._tokens), strict=False)
        return next((number for number, (one, other) in enumerate(pairs) if one != other), most)
