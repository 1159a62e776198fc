"""Products of three parameters, of which the default run has a part with every pair of values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest


def in_turn(first: Sequence[Any], second: Sequence[Any], third: Sequence[Any]) -> list[Any]:
    """Arguments of `parametrize` for three parameters, the last of which is a list of values: those to run.

    Beside each value of the first and each of the second one value of the third stands, or as few as it takes for
    every pair of values of two parameters to occur. The other values of the third are in the slow run.
    """
    count = len(third)
    assert len(first) >= count, "some pairs of the second and the third would be missing"
    found = []
    for i, one in enumerate(first):
        for j, other in enumerate(second):
            chosen = {(i + each) % count for each in range(j, count, len(second)) or (j,)}
            parts = [[value for at, value in enumerate(third) if (at in chosen) == now] for now in (True, False)]
            found.append(pytest.param(one, other, parts[0], id=f"{one}-{other}"))
            if parts[1]:
                found.append(pytest.param(one, other, parts[1], id=f"{one}-{other}-others", marks=pytest.mark.slow))
    return found
