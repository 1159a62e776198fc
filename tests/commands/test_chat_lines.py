"""Lines typed on a pseudo-terminal."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys

import pytest

from support.processes import environment
from winnow.commands.chat import _talk
from winnow.commands.chat_lines import typed_lines
from winnow.errors import Ended

TYPED = """
from winnow.commands.chat_lines import on_terminal, typed_lines
print("terminal", on_terminal())
for line in typed_lines():
    print("got", line, flush=True)
print("the end", flush=True)
"""


@pytest.mark.skipif(os.name == "nt", reason="pseudo-terminals")
def test_lines_until_ctrl_d_and_ctrl_c_begins_again():
    leader, follower = os.openpty()

    def on_terminal() -> None:
        # What runs in the background of a shell ignores Ctrl-C, and what it starts does.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.login_tty(follower)

    chat = subprocess.Popen(
        [sys.executable, "-c", TYPED], env={**environment(), "TERM": "dumb"}, preexec_fn=on_terminal
    )
    os.close(follower)
    seen = until(leader, r"terminal True.*> ")
    # Keys that come before the prompt are read as no line editor reads them.
    seen += press(leader, "one\n", "got one.*> ")
    seen += press(leader, "no\x03", "Ctrl-D or /quit ends the chat.*> ", again=10)
    seen += press(leader, "  \n\ntwo \n", "got two.*> ")
    seen += press(leader, "\x04", "the end")
    assert chat.wait(timeout=20) == 0
    os.close(leader)
    assert "got no" not in seen


def press(leader: int, keys: str, pattern: str, again: int = 0) -> str:
    """Output until it holds a pattern, after keys that are pressed again where Python misses them.

    It does a signal that comes right before it begins to wait for keys.
    """
    os.write(leader, keys.encode())
    try:
        return until(leader, pattern, seconds=2 if again else 30)
    except TimeoutError:
        if not again:
            raise
        return press(leader, keys, pattern, again - 1)


def until(leader: int, pattern: str, seconds: float = 30) -> str:
    """Output until it holds a pattern."""
    seen = ""
    while not re.search(pattern, seen, flags=re.DOTALL):
        if not select.select([leader], [], [], seconds)[0]:
            raise TimeoutError(f"{pattern!r} did not come after {seen!r}")
        seen += os.read(leader, 4096).decode()
    return seen


def test_a_request_to_end_is_no_ctrl_c(monkeypatch):
    def ended(_):
        raise Ended

    monkeypatch.setattr("builtins.input", ended)
    with pytest.raises(Ended):
        next(typed_lines())


def test_a_request_to_end_ends_a_chat_while_it_answers():
    class Asked:
        def take(self, line):
            raise Ended

    with pytest.raises(Ended):
        _talk(Asked(), ["a question"])
