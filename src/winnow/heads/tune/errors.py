"""What can go wrong while a knob is tuned."""

from __future__ import annotations

from winnow.heads.errors import HeadScoresError


class TuneError(HeadScoresError):
    """Values, questions or splits from which no choice can be made."""
