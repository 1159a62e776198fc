"""Head scores that come with Winnow."""

from __future__ import annotations

from winnow.bundled import HEADS_PATH, is_bundled
from winnow.heads.scores import HeadScores


def shipped_scores(model: str, method: str) -> HeadScores | None:
    """The scores of a model, by its name or directory, that a method estimated; None where there are none."""
    path = HEADS_PATH / f"{method}.safetensors"
    return HeadScores.load(path) if is_bundled(model) and path.exists() else None
