"""What can go wrong while needle scores are estimated."""

from __future__ import annotations

from winnow.heads.errors import HeadScoresError


class NeedleError(HeadScoresError):
    """Needles, haystacks or answers from which no head score can be estimated."""
