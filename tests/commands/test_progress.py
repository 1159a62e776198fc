"""Progress on terminals and in logs, and messages of resumable work that stops."""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import threading
import time
from pathlib import Path

import pytest
from rich.console import Console

from support.clocks import SetClock
from winnow.commands import progress
from winnow.commands.pace import Pace
from winnow.commands.progress import counted, progress_bar, resumable, stage
from winnow.commands.progress_lines import EVERY, FIRST, ProgressLines
from winnow.estimate.errors import ExecutorError, JournalError


@pytest.mark.parametrize("problem", [KeyboardInterrupt(), JournalError("full"), ExecutorError("lost")])
def test_what_is_kept_is_said(capsys, problem):
    done = []
    with pytest.raises(type(problem)), resumable(Path("a.jsonl"), lambda: f"{len(done)} of 3 runs"):
        done.append(1)
        raise problem
    assert capsys.readouterr().err == "1 of 3 runs are kept in a.jsonl; the same command goes on from there.\n"


def test_other_errors_and_quick_work_say_nothing(capsys):
    with pytest.raises(ValueError), resumable(Path("a.jsonl"), str):
        raise ValueError
    with resumable(Path("a.jsonl"), str), progress_bar("Working", 2) as bar, stage("Loading"):
        bar.advance()
        bar.show("Nearly there")
        bar.set(2, 2)
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "")


def test_a_log_has_a_line_a_minute_and_one_at_the_end(capsys, monkeypatch):
    # Colors that somebody wants elsewhere make no terminal of a log.
    monkeypatch.setenv("FORCE_COLOR", "1")
    clock = SetClock()
    with progress_bar("Runs [r]", 10, clock=clock) as bar:
        for step in range(10):
            clock.wait(30)
            bar.show(f"Runs [r], {step + 1} right")
            bar.advance()
    told = capsys.readouterr().err
    assert told.splitlines() == [
        # The text was changed before the step was counted.
        "Runs [r], 1 right: 0 of 10, 0:30 so far",
        "Runs [r], 3 right: 2 of 10, 1:30 so far, about 3:30 left",
        "Runs [r], 5 right: 4 of 10, 2:30 so far, about 2:30 left",
        "Runs [r], 7 right: 6 of 10, 3:30 so far, about 1:30 left",
        "Runs [r], 9 right: 8 of 10, 4:30 so far, about 0:30 left",
        "Runs [r], 10 right: 10 of 10, ended after 5:00",
    ]
    assert "\r" not in told
    assert "\x1b" not in told


def test_what_others_show_on_terminals_is_a_line_in_logs(capsys, monkeypatch):
    for terminal in (False, True):
        monkeypatch.setattr("winnow.commands.progress._on_terminal", lambda terminal=terminal: terminal)
        clock = SetClock()
        with counted("Answers", 3, clock=clock) as bar:
            for _ in range(3):
                clock.wait(25)
                bar.advance()
            assert bar.pace.told() == "3 of 3, 1:15 so far"
        told = capsys.readouterr().err
        lines = ["Answers: 1 of 3, 0:25 so far, about 0:50 left", "Answers: 3 of 3, ended after 1:15"]
        assert told.splitlines() == ([] if terminal else lines)


def test_long_lines_stay_lines(capsys):
    clock = SetClock()
    with progress_bar("long " * 60, 10, clock=clock) as bar:
        clock.wait(FIRST)
        bar.advance()
        assert capsys.readouterr().err.count("\n") == 1


def test_work_that_fails_has_no_last_line(capsys):
    clock = SetClock()
    with pytest.raises(ValueError), stage("Loading", clock=clock) as doing:
        clock.wait(FIRST)
        doing.show("Loading more")
        raise ValueError
    assert capsys.readouterr().err == "Loading more: 0:20 so far\n"


def test_lines_come_where_nothing_advances(capsys):
    """A single run may take longer than a minute: then somebody else looks at the clock."""
    clock = SetClock()
    pace = Pace(clock, total=2)
    lines = ProgressLines(pace.told, clock)
    before = threading.active_count()
    told = ""
    with lines.ticking(look=0.001):
        for moment in (FIRST, FIRST + EVERY):
            clock.seconds = moment
            told += _until_said(capsys)
    assert told == "0 of 2, 0:20 so far\n0 of 2, 1:20 so far\n"
    assert threading.active_count() == before


def _until_said(capsys):
    for _ in range(5000):
        said = capsys.readouterr().err
        if said:
            return said
        time.sleep(0.001)
    pytest.fail("no line came")


def _rest_of(leader):
    """Everything that was written to a pseudo-terminal that nobody writes to any more."""
    seen = b""
    with contextlib.suppress(OSError):
        while some := os.read(leader, 1 << 16):
            seen += some
    os.close(leader)
    return seen.decode()


@pytest.mark.skipif(os.name == "nt", reason="pseudo-terminals")
def test_a_terminal_has_bars_that_disappear(monkeypatch):
    import pty

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    leader, follower = pty.openpty()
    clock = SetClock()
    with os.fdopen(follower, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        with progress_bar("Needles [er]", 40_000, unit="tokens", clock=clock) as bar:
            clock.wait(10)
            bar.advance(10_000)
        with stage("Loading [it]"):
            pass
    seen = _rest_of(leader)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen)
    assert re.search(r"Needles \[er\] .*10,000 of 40,000 tokens, 1,000 a second, 0:30 left", plain)
    assert "Loading [it]" in plain
    assert "\r" in seen


def test_a_narrow_terminal_cuts_the_text_and_not_the_pace(monkeypatch):
    shown, clock = io.StringIO(), SetClock()
    console = Console(file=shown, force_terminal=True, color_system=None, width=80)
    monkeypatch.setattr(progress, "messages", lambda: console)
    monkeypatch.setattr(progress, "_on_terminal", lambda: True)
    text = "Question 12 of 48: snapkv(window=16)+ada(0.3) @ 128, reading for 3 methods"
    with progress_bar(text, 12345, unit="tokens", clock=clock) as bar:
        clock.wait(10)
        bar.advance(6000)
    lines = [line for line in re.split(r"[\r\n]+", shown.getvalue()) if "Question 12" in line]
    assert lines[-1].rstrip().endswith("6,000 of 12,345 tokens, 600 a second, 0:11 left")
    assert "…" in lines[-1]
    # The bar is short there, for the text.
    assert "Question 12 of 48: " in lines[-1]
