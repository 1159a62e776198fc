"""Fixtures of the tests of `winnow heads`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from support.published_tables import write_published_tables
from winnow.cli import main


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in, with published tables of head scores."""
    monkeypatch.chdir(tmp_path)
    write_published_tables()
    return tmp_path


@pytest.fixture
def winnow_heads(folder: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Runs a command line of `winnow heads` in `folder`; returns its exit code, stdout and stderr."""

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(["heads", *arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run
