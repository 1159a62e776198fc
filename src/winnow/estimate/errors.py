"""Everything that can go wrong while head scores are estimated, tuned or verified, and in long work of any kind."""

from __future__ import annotations

from winnow.errors import HeadScoresError, WinnowError


class JournalError(WinnowError, ValueError):
    """A journal that cannot be read or written, or that belongs to another configuration."""


class ExecutorError(WinnowError, ValueError):
    """Workers that cannot be started or do not survive."""


class NeedleError(HeadScoresError):
    """Needles, haystacks or answers from which no head score can be estimated."""


class ShapleyError(HeadScoresError):
    """Players, sizes, samples or utilities from which no Shapley value can be computed."""


class NoiseError(HeadScoresError):
    """Scores that nothing tells from noise."""


class TuneError(HeadScoresError):
    """Values, questions or splits from which no choice can be made."""


class VerifyError(HeadScoresError):
    """Runs or samples that cannot be compared with a table."""


class Inconsistent(VerifyError):
    """A table that repeated runs do not fit so far that there is nothing more to compare."""


class NotVerifiable(VerifyError):
    """A table that does not say how it was made."""
