"""What can be wrong with a table of head scores."""

from __future__ import annotations

from winnow.errors import WinnowError


class HeadScoresError(WinnowError, ValueError):
    """Head scores that cannot be read, or that cannot be used."""
