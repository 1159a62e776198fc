"""Variables of the environment that take one of a few values."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence


def chosen(name: str, values: Sequence[str], otherwise: str) -> str | None:
    """The value of a variable, None where it is not set; one that it does not take is warned of and counts as not set.

    otherwise: what is done then, in words.
    """
    value = os.environ.get(name)
    if not value or value in values:
        return value or None
    warn_of(name, "is not known", otherwise, values)
    return None


def warn_of(name: str, wrong: str, otherwise: str, values: Sequence[str]) -> None:
    """A warning that a variable has no effect: what is wrong with its value, what is done instead, what it takes."""
    warnings.warn(
        f"{name}={os.environ[name]} {wrong}: {otherwise}. It takes {', '.join(values)}.", RuntimeWarning, stacklevel=3
    )
