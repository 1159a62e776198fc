"""Tables of head scores that were changed on purpose."""

from __future__ import annotations

import json
from dataclasses import replace

COKV_SETTINGS = {
    "players": 16,
    "sizes": [8],
    "seed": 0,
    "examples": 4,
    "question_tokens": 256,
    "window": 8,
    "answer_tokens": 24,
}


def asking(table, **changes):
    """The same table with other settings."""
    return replace(table, settings=json.dumps({**json.loads(table.settings), **changes}), path=None)


def swapped(table, one, other):
    values = table.values.clone()
    values[one], values[other] = table.values[other], table.values[one]
    return replace(table, values=values, path=None)
