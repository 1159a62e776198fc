"""Cases of attacks: a slice of them in the suite, all of them in `make attack`.

A file in `tests/attack` is one area; its docstring's first line names what is attacked. One test item is one case.
"""

from __future__ import annotations

import os

WHOLE = os.environ.get("WINNOW_ATTACK") == "whole"
"""True in `make attack`."""


def seeds(some: int, all: int) -> range:
    """Seeds of the cases of a test: `some` in the suite, `all` in `make attack`, which has the same ones first."""
    return range(all if WHOLE else some)
