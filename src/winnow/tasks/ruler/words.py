"""English words that RULER draws from: those of the package wonderwords, which has them from public lists."""

from __future__ import annotations

from functools import cache
from importlib import resources

from winnow.tasks.benchmark import BenchmarkError


@cache
def nouns() -> tuple[str, ...]:
    """All nouns."""
    return _words("noun")


@cache
def adjectives() -> tuple[str, ...]:
    """All adjectives."""
    return _words("adjective")


@cache
def all_words() -> tuple[str, ...]:
    """Nouns, adjectives and verbs, none of them twice."""
    return tuple(sorted({*nouns(), *adjectives(), *_words("verb")}))


def _words(kind: str) -> tuple[str, ...]:
    """The words of a list, in alphabetic order. Raises BenchmarkError where the package is not installed."""
    try:
        file = resources.files("wonderwords") / "assets" / f"{kind}list.txt"
    except ModuleNotFoundError:
        raise BenchmarkError(
            "RULER draws words from the package wonderwords, which is not installed: pip install 'winnow-kv[eval]'."
        ) from None
    lines = file.read_text(encoding="utf-8").splitlines()
    return tuple(sorted({line.strip() for line in lines if line.strip()}))
