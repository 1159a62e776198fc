"""What results call a model."""

from __future__ import annotations

from pathlib import Path

from winnow.bundled import NAME, is_bundled
from winnow.models import ModelSource


def model_name(source: ModelSource) -> str:
    """Without the machine's folders."""
    if is_bundled(source.name):
        return NAME
    path = Path(source.name).expanduser()
    return path.resolve().name if path.is_dir() else source.name
