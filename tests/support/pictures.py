"""Pictures, read back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


def pixels(path: str | Path) -> Any:
    """Colors [height, width, 3] of a picture, 0 to 1; skips the test where Matplotlib is missing."""
    image = pytest.importorskip("matplotlib.image")
    return image.imread(path)[..., :3]
