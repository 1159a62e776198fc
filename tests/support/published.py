"""Published tables of head scores: their folder, where it is here, and files like them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

DATA = Path(__file__).parents[2] / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the published tables are not here")


def headkv_file(folder: Path, content: object, name: str = "Tiny_retrieval_reasoning_heads.json") -> Path:
    path = folder / name
    path.write_text(json.dumps(content))
    return path
