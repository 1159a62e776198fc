"""Messages of resumable work that stops."""

from __future__ import annotations

from pathlib import Path

import pytest

from winnow.commands.progress import progress_bar, resumable
from winnow.estimate.errors import ExecutorError, JournalError


@pytest.mark.parametrize("problem", [KeyboardInterrupt(), JournalError("full"), ExecutorError("lost")])
def test_what_is_kept_is_said(capsys, problem):
    done = []
    with pytest.raises(type(problem)), resumable(Path("a.jsonl"), lambda: f"{len(done)} of 3 runs"):
        done.append(1)
        raise problem
    assert capsys.readouterr().err == "1 of 3 runs are kept in a.jsonl; the same command goes on from there.\n"


def test_other_errors_and_the_end_say_nothing(capsys):
    with pytest.raises(ValueError), resumable(Path("a.jsonl"), str):
        raise ValueError
    with resumable(Path("a.jsonl"), str), progress_bar("Working", 2) as bar:
        bar.advance()
        bar.show("Nearly there")
        bar.set(2, 2)
    captured = capsys.readouterr()
    assert "kept" not in captured.err
    assert not captured.out
