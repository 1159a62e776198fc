"""Standard error that nobody reads, or that is full or closed: the work goes on, and so does standard output."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from support.processes import environment

TELLS = """
import sys
from winnow.commands.console import messages, output
if sys.argv[1:] == ["closed"]:
    sys.stderr.close()
for number in range(3):
    messages().print("progress", number)
    output().print("result", number)
"""


def told(stderr: int, *arguments: str) -> tuple[int, str]:
    """Exit code and output of a process that tells its progress to a file descriptor."""
    found = subprocess.run(
        [sys.executable, "-c", TELLS, *arguments], env=environment(), stdout=subprocess.PIPE, stderr=stderr, text=True
    )
    return found.returncode, found.stdout


def test_nobody_reads_it():
    reader, writer = os.pipe()
    os.close(reader)
    assert told(writer) == (0, "result 0\nresult 1\nresult 2\n")
    os.close(writer)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux")
def test_it_is_full():
    full = os.open("/dev/full", os.O_WRONLY)
    # Python itself ends with 120 where its last flush fails.
    code, output = told(full)
    assert code in (0, 120)
    assert output == "result 0\nresult 1\nresult 2\n"
    os.close(full)


def test_it_is_closed():
    assert told(subprocess.DEVNULL, "closed") == (0, "result 0\nresult 1\nresult 2\n")
