"""Lines typed on a pseudo-terminal."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from support.processes import environment

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
    chat = subprocess.Popen(
        [sys.executable, "-c", TYPED], env={**environment(), "TERM": "dumb"}, preexec_fn=lambda: os.login_tty(follower)
    )
    os.close(follower)
    seen = until(leader, "> ")
    assert "terminal True" in seen
    for keys, expected in (
        ("one\n", "got one"),
        ("no\x03", "Ctrl-D or /quit ends the chat."),
        ("  \n\ntwo \n", "got two"),
        ("\x04", "the end"),
    ):
        os.write(leader, keys.encode())
        seen += until(leader, expected)
    assert chat.wait(timeout=20) == 0
    os.close(leader)
    assert "got no" not in seen


def until(leader: int, mark: str) -> str:
    """Output up to a mark, and what follows it at once."""
    seen = ""
    while mark not in seen:
        seen += os.read(leader, 4096).decode()
    return seen
