"""What can go wrong while sliced Shapley values are estimated."""

from __future__ import annotations

from winnow.heads.errors import HeadScoresError


class ShapleyError(HeadScoresError):
    """Players, sizes, samples or utilities from which no Shapley value can be computed."""
