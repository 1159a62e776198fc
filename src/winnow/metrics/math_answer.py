"""The result of a mathematical problem, as text or as an equal expression, for MATH (Hendrycks et al. 2021)."""

from __future__ import annotations

import re
import threading

from winnow.metrics.libraries import library
from winnow.metrics.several import best_of_several
from winnow.metrics.stated import boxed, marked, own_part

_SECONDS = 5
"""The longest that an expression is read or compared; some never come to an end."""


@best_of_several
def math_answer(answer: str, right: str) -> float:
    r"""1 where the stated result is written as the right one is, or equals it as an expression (math-verify).

    Stated is the last \boxed{…}, else the line after the last "the answer is" or "####", else what math-verify finds.
    """
    # Asked for first: scores must not depend on what is installed.
    verifier = library("math_verify")
    wanted, said = _stated(own_part(right)), _stated(own_part(answer))
    if _plain(said) == _plain(wanted):
        return 1.0
    if not said.strip():
        return 0.0
    # An alarm clock only rings in the main thread.
    seconds = _SECONDS if threading.current_thread() is threading.main_thread() else None
    gold, found = (verifier.parse(_as_formula(text), parsing_timeout=seconds) for text in (wanted, said))
    return float(bool(gold and found) and verifier.verify(gold, found, timeout_seconds=seconds))


def _stated(text: str) -> str:
    if (box := boxed(text)) is not None:
        return box
    if (rest := marked(text)) is not None:
        return rest.partition("\n")[0]
    return text


def _as_formula(text: str) -> str:
    """A text as math-verify reads it: between dollars if it is a formula without any, as contents of boxes are."""
    has_words = _WORD.search(_COMMAND.sub("", text)) is not None
    return text if has_words or "\n" in text or _DELIMITER.search(text) else f"${text.rstrip('. ')}$"


_COMMAND = re.compile(r"\\[A-Za-z]+(?:\{[A-Za-z\s]*\})?")
_WORD = re.compile(r"[A-Za-z]{3}|\b[A-Za-z]{2}\s")
_DELIMITER = re.compile(r"(?<!\\)\$|\\\(|\\\[")
_SAME = (
    (r"\\[dt]frac", r"\\frac"),
    (r"\\frac(\d)(\d)", r"\\frac{\1}{\2}"),
    (r"\\sqrt(\w)", r"\\sqrt{\1}"),
    (r"\\left|\\right|\\[!,;:]|\\ |\\?\$|\\\(|\\\)|\\?%", ""),
    (r"\\(?:text|mathrm|mbox|textbf)\{([^{}]*)\}", r"\1"),
    (r"\^\{?\\circ\}?|\\degree", ""),
    (r"\{,\}", ","),
    (r"(?<=\d),(?=\d{3}(?!\d))", ""),
    (r"\s+|\.\s*\Z", ""),
)
"""Spellings of LaTeX that mean the same, and what both are replaced by."""


def _plain(text: str) -> str:
    for pattern, spelled in _SAME:
        text = re.sub(pattern, spelled, text)
    return text
