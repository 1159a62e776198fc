"""Interrupts end a process at once only until a job begins."""

from __future__ import annotations

import os
import signal

import pytest

from support.processes import python
from winnow.commands.interrupts import end_at_once, raise_again

pytestmark = pytest.mark.skipif(os.name == "nt", reason="POSIX signals")


@pytest.fixture(autouse=True)
def handler():
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_the_usual_handler_comes_back():
    signal.signal(signal.SIGINT, signal.default_int_handler)
    end_at_once()
    assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    raise_again()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("other", [signal.SIG_IGN, lambda *_: None])
def test_other_handlers_are_left_alone(other):
    signal.signal(signal.SIGINT, other)
    end_at_once()
    raise_again()
    assert signal.getsignal(signal.SIGINT) is other


def after(setup: str, number: str, caught: str):
    """A process in which a signal comes after a setup, and what it printed."""
    return python(
        "import os, signal\n"
        "from winnow.commands.interrupts import end_at_once, raise_again\n"
        "from winnow.errors import Ended\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        f"{setup}\n"
        "try:\n"
        f"    os.kill(os.getpid(), signal.{number})\n"
        f"except {caught}:\n"
        "    print('caught')\n"
        "print('went on')\n"
    )


def test_nothing_catches_the_end():
    found = after("end_at_once()", "SIGINT", "BaseException")
    assert (found.returncode, found.stdout, found.stderr) == (130, "", "Interrupted.\n")


def test_a_request_to_end_is_an_interrupt():
    found = after("end_at_once(); raise_again()", "SIGTERM", "KeyboardInterrupt")
    assert (found.returncode, found.stdout, found.stderr) == (0, "caught\nwent on\n", "")


@pytest.mark.parametrize("number", ["SIGTERM", "SIGHUP"])
def test_a_request_to_end_counts_where_a_shell_ignores_interrupts_of_background_jobs(number):
    # A suite that runs under nohup hands its own ignorance on.
    heard = f"signal.signal(signal.{number}, signal.SIG_DFL); signal.signal(signal.SIGINT, signal.SIG_IGN)"
    found = after(f"{heard}; end_at_once(); raise_again()", number, "Ended")
    assert (found.returncode, found.stdout) == (0, "caught\nwent on\n"), found.stderr


def test_a_closed_terminal_is_left_alone_where_it_is_to_be():
    found = after("signal.signal(signal.SIGHUP, signal.SIG_IGN); end_at_once(); raise_again()", "SIGHUP", "Ended")
    assert (found.returncode, found.stdout) == (0, "went on\n")
