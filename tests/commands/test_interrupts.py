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
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


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


def test_nothing_catches_the_end():
    code = (
        "import os, signal\n"
        "from winnow.commands.interrupts import end_at_once\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "end_at_once()\n"
        "try:\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "except BaseException:\n"
        "    print('caught')\n"
        "print('went on')\n"
    )
    found = python(code)
    assert (found.returncode, found.stdout, found.stderr) == (130, "", "Interrupted.\n")


def test_a_request_to_end_is_an_interrupt():
    code = (
        "import os, signal\n"
        "from winnow.commands.interrupts import end_at_once, raise_again\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "end_at_once()\n"
        "raise_again()\n"
        "try:\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "except KeyboardInterrupt:\n"
        "    print('kept')\n"
    )
    found = python(code)
    assert (found.returncode, found.stdout, found.stderr) == (0, "kept\n", "")
