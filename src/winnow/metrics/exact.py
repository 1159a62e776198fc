"""The right answer word for word, and nothing more before the first sentence ends."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from winnow.metrics.base import Expected
from winnow.metrics.several import right_answers
from winnow.metrics.words import Word, words

# A full stop right before a letter or a digit is part of a number, a name or an abbreviation: 3.14, U.S., main.py.
_END = re.compile(r"[\n\r。！？…]|[.!?](?!\Z)")


class _Comparison(NamedTuple):
    right: bool
    settled: bool
    """True if nothing that may follow changes it."""


def exact_match(answer: str, expected: Expected) -> float:
    """1 where an answer begins with a right one, which ends where the answer, a sentence or a line ends.

    Case, blanks and punctuation do not count, only letters, digits and the signs of numbers. So a model may chat on
    after its answer, and the right answer may hold full stops itself: 3.14, St. Louis.
    """
    return float(any(_compare(answer, right).right for right in right_answers(expected)))


def is_settled(answer: str, expected: Expected) -> bool:
    """True if nothing that may still be generated changes the result of `exact_match`."""
    compared = [_compare(answer, right) for right in right_answers(expected)]
    return any(each.right and each.settled for each in compared) or all(each.settled for each in compared)


def _compare(answer: str, right: str) -> _Comparison:
    wanted = _wanted(right)
    if not wanted:
        return _Comparison(right.strip() in _beginnings(answer), settled=False)
    said = words(answer)
    count = len(wanted)
    if [word.text for word in said[:count]] != wanted:
        return _Comparison(right=False, settled=not _may_become(wanted, said, len(answer)))
    if len(said) == count:
        return _Comparison(right=True, settled=_ends_sentence(answer[said[-1].end :]))
    return _Comparison(_ends_sentence(answer[said[count - 1].end : said[count].start]), settled=True)


@lru_cache(maxsize=256)
def _wanted(right: str) -> list[str]:
    return [word.text for word in words(right)]


def _beginnings(answer: str) -> set[str]:
    """Texts that an answer of signs alone may be: all of it or its first line."""
    return {answer.strip(), answer.strip().partition("\n")[0].strip()}


def _may_become(wanted: list[str], said: list[Word], length: int) -> bool:
    """True if a text of this length that goes on can still begin with the wanted words."""
    goes_on = said[-1:] if said and said[-1].end == length else []
    whole = [word.text for word in said[: len(said) - len(goes_on)]]
    rest = wanted[len(whole) :]
    return whole == wanted[: len(whole)] and all(bool(rest) and rest[0].startswith(word.text) for word in goes_on)


def _ends_sentence(gap: str) -> bool:
    """True if a sentence or a line ends between two words, or between a word and the end of the text so far."""
    return _END.search(gap) is not None
