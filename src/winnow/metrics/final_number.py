"""The number that a worked answer ends with, for GSM8K (Cobbe et al. 2021)."""

from __future__ import annotations

import re
from decimal import Decimal

from winnow.metrics.base import MetricError
from winnow.metrics.several import best_of_several
from winnow.metrics.stated import boxed, marked, own_part

_NUMBER = re.compile(r"(?<![\w.])(-)?\$?(-)?(\d{1,3}(?:,\d{3})+(?!\d)|\d+)?(\.\d+)?")
_THIN_SPACE = re.compile(r"(?<=\d)(?:\\[,;: ]|[\u00a0\u2009\u202f])(?=\d{3}(?!\d))")
"""Between thousands, as LaTeX and Unicode write it; a common blank may stand between two numbers."""
_SUM = re.compile(r"[^A-Za-z\n]*=")


@best_of_several
def final_number(answer: str, right: str) -> float:
    """1 where the stated result is the number of the right answer; currency, commas, thin spaces, units do not count.

    Stated is the last number in a box, else the first one after the last "####" or "the answer is", else the last one
    of all. Raises MetricError for a right answer without a number.
    """
    wanted = _stated(own_part(right))
    if wanted is None:
        raise MetricError(f"The right answer {right!r} has no number.")
    return float(_stated(own_part(answer)) == wanted)


def _stated(text: str) -> Decimal | None:
    plain = text.replace("{,}", ",").replace("\\$", "$").replace("\\!", "").replace("−", "-")
    plain = _THIN_SPACE.sub("", plain)
    if (box := boxed(plain)) is not None and (found := _numbers(box)):
        return found[-1]
    if (rest := marked(plain)) is not None and (found := _numbers(_behind_a_sum(rest))):
        return found[0]
    return next(reversed(_numbers(plain)), None)


def _behind_a_sum(text: str) -> str:
    """A text that begins as "5 + 3 = 8" from its result on."""
    found = _SUM.match(text)
    return text[found.end() :] if found else text


def _numbers(text: str) -> list[Decimal]:
    found = []
    for sign, inner_sign, whole, fraction in _NUMBER.findall(text):
        if whole or fraction:
            value = Decimal((whole.replace(",", "") or "0") + fraction)
            found.append(-value if sign or inner_sign else value)
    return found
