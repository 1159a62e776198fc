"""Files of models read by transformers, whose readers raise whatever they like."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

from winnow.errors import ModelError, WinnowError

T = TypeVar("T")


def reading(name: str, what: str, read: Callable[[], T], remedy: str | None = None) -> T:
    """Whatever `read` returns. Raises ModelError in one line where it fails.

    what: the part that is read ("weights"); remedy: a sentence; None for what suits a directory or a hub name.
    """
    try:
        return read()
    except WinnowError:
        raise
    except ImportError as problem:
        raise ModelError(f"The {what} of {name} needs another package: {first_line(problem)}") from problem
    except Exception as problem:
        # transformers lets through whatever its readers raise: OSError, ValueError, KeyError, ...
        if remedy is None:
            remedy = "" if os.path.isdir(name) else "Check name and network, or give a model's directory."
        line = first_line(problem) if not remedy else f"{first_line(problem).removesuffix('.')}. {remedy}"
        raise ModelError(f"Cannot load the {what} of {name}: {line}") from problem


def first_line(problem: BaseException) -> str:
    """The first sentence or line of an exception's text; its type where it has none."""
    lines = str(problem).strip().splitlines()
    return lines[0].strip() if lines else type(problem).__name__
