"""Exceptions whose message names the remedy."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

OWN_CACHE = 'use its own cache, after model.set_attn_implementation("sdpa"), or "eager" where it has no sdpa'
"""The remedy for a model that winnow cannot compress; sparse models attend rightly under their own attention only."""


class WinnowError(Exception):
    """Base of every error this package raises on purpose."""


class BudgetError(WinnowError, ValueError):
    """A budget cannot be read, or cannot be kept."""


class MethodError(WinnowError, ValueError):
    """A method does not exist, or its parts or parameters do not fit together."""


class UnknownMethod(MethodError):
    """No method or part has this name."""


class UnknownParameter(MethodError):
    """The method has no parameter of this name."""


class CacheError(WinnowError, RuntimeError):
    """The cache was used in a way that would give wrong results."""


class ContextError(CacheError):
    """A context cannot be written to a file, or read from one."""


class GraphError(CacheError):
    """A decoding step cannot be captured in a graph; the cache is unchanged."""


class ModelError(WinnowError, ValueError):
    """The cache of this model, or the values that the model computed, cannot be compressed."""


class PromptError(WinnowError, ValueError):
    """A text or question is empty, too long, or does not fit the prompt or the chat template."""


class HeadScoresError(WinnowError, ValueError):
    """Head scores cannot be read, or cannot be used."""


class FileError(WinnowError):
    """A file cannot be read or written."""


class JsonError(WinnowError, ValueError):
    """A JSON text that cannot be read, or that other readers would read differently."""


def is_out_of_memory(problem: BaseException) -> bool:
    """True for memory that ran out: torch's error on accelerators, known by its name here, and its words on a CPU."""
    told = ("can't allocate memory", "not enough memory")  # Windows has the others
    named = isinstance(problem, MemoryError) or type(problem).__name__ == "OutOfMemoryError"
    return named or any(words in str(problem) for words in told)


def closest(name: str, known: Iterable[str]) -> str:
    """The end of an error text, behind a colon: what exists, and what was probably meant."""
    names = sorted(set(known))
    there = ", ".join(names) if names else "none"
    match = get_close_matches(name, names, n=1)
    return f"did you mean {match[0]!r}? There are {there}." if match else f"there are {there}."


class Ended(KeyboardInterrupt):
    """A request to end the program (SIGTERM), where Ctrl-C ends an answer or a line."""
