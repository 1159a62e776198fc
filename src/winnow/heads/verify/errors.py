"""What can go wrong while a table of head scores is verified."""

from __future__ import annotations

from winnow.heads.errors import HeadScoresError


class VerifyError(HeadScoresError):
    """Runs or samples that cannot be compared with a table."""


class NotVerifiable(VerifyError):
    """A table that does not say how it was made."""
