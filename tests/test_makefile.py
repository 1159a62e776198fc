"""The Makefile names test files that are there: a renamed one would end `make test-low` before its first test."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
@pytest.mark.parametrize("target", ["test-low", "test-gpu"])
def test_every_test_file_of_a_target_is_there(target: str) -> None:
    recipe = subprocess.run(
        ["make", "--dry-run", target], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    ).stdout
    files = re.findall(r"tests/[\w/]+(?:\.py)?", recipe)
    assert files
    assert [name for name in files if not (ROOT / name).exists()] == []
