"""Models in files whose tokenizer nobody asks for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from winnow.models.source import ModelSource, read_configuration


def source_in(folder: Path) -> ModelSource:
    """The model that was saved in a folder."""
    unused: Any = None
    return ModelSource(str(folder), read_configuration(str(folder)), unused)
