"""A server in a program of its own, for as long as it is measured."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import IO

from winnow.errors import WinnowError

SAYS_ADDRESS = re.compile(r"http://[\w.]+:\d+")
LAST_WORDS = 15
"""Lines of a server that ended at once, which are shown."""


class ServerError(WinnowError):
    """A server that ended before it served."""


@dataclass(frozen=True)
class Server:
    """A server that answers."""

    address: str
    """Up to "/v1"."""
    process: int

    def resident_bytes(self) -> int:
        """Memory that is resident now, weights included; 0 where the system does not tell."""
        status = Path(f"/proc/{self.process}/status")
        lines = status.read_text().splitlines() if status.exists() else []
        return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS")), 0)


@contextmanager
def running(command: Sequence[str]) -> Iterator[Server]:
    """A server from the line in which it says its address on, until the end of the context.

    Raises:
        ServerError: it ended without.
    """
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    assert process.stdout is not None
    try:
        address = _address(process.stdout, command)
        # What it says later is read, too: a full pipe would stop it.
        Thread(target=process.stdout.read, daemon=True).start()
        yield Server(f"{address}/v1", process.pid)
    finally:
        process.terminate()
        process.wait()


def winnow_server(model: str, weights: str, method: str, rows: int, *more: str) -> list[str]:
    """The command of a `winnow serve`; more: further options."""
    options = ["--model", model, "--weights", weights, "--method", method, "--rows", str(rows), "--port", "0"]
    return [sys.executable, "-m", "winnow.cli", "serve", *options, *more]


def _address(output: IO[str], command: Sequence[str]) -> str:
    said: list[str] = []
    for line in output:
        said.append(line)
        # Pages of documentation may be named before; a server's own address has a port.
        if found := SAYS_ADDRESS.search(line):
            return found[0]
    raise ServerError(f"{shlex.join(command)} ended at once:\n{''.join(said[-LAST_WORDS:])}")
