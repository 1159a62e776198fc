"""Commands in processes of their own that start at once: a process that has imported everything forks itself.

As a program it reads one job a line, {"call": "module:function", "arguments": [...], "folder": "..."}, prints the
number of the process that does it, and when that has ended, how. What the process says goes to out.txt and err.txt in
the folder.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from support.processes import environment

TESTS = Path(__file__).resolve().parents[1]
TICKS = os.sysconf("SC_CLK_TCK")


class Launcher:
    """A process that starts others."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "support.launcher"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(TESTS),
        )

    def run(
        self, call: str, arguments: Sequence[str], folder: Path, end: Callable[[int], bool] = lambda _: False
    ) -> int:
        """The status that the process ended with: its exit code, or minus the signal.

        end: asked again and again with the number of the process; as soon as it says so, the process is killed.
        """
        assert self._process.stdin is not None
        job = {"call": call, "arguments": list(arguments), "folder": str(folder)}
        print(json.dumps(job), file=self._process.stdin, flush=True)
        number = self._answer()
        while not ended(number):
            if end(number):
                os.kill(number, 9)
                break
            # For the process to get on; nothing is decided by it.
            time.sleep(0.003)
        print("wait", file=self._process.stdin, flush=True)
        return self._answer()

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _answer(self) -> int:
        assert self._process.stdout is not None
        return int(self._process.stdout.readline())


def ended(number: int) -> bool:
    """True if a process has ended; nobody has waited for it yet."""
    return _stat(number)[0] == "Z"


def ticks(number: int) -> int:
    """Hundredths of a second that a process has worked."""
    user, system = _stat(number)[11:13]
    return (int(user) + int(system)) * 100 // TICKS


def _stat(number: int) -> list[str]:
    return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()


def _serve() -> None:
    import torch

    # Threads would not survive the fork.
    torch.set_num_threads(1)
    for name in ("commands.run", "commands.compress", "commands.heads.cokv", "commands.heads.needle"):
        importlib.import_module(f"winnow.{name}")
    for name in ("tune", "verify"):
        importlib.import_module(f"winnow.commands.heads.{name}")
    for line in sys.stdin:
        job: dict[str, Any] = json.loads(line)
        number = os.fork()
        if not number:
            _work(job)
        print(number, flush=True)
        sys.stdin.readline()
        print(os.waitstatus_to_exitcode(os.waitpid(number, 0)[1]), flush=True)


def _work(job: dict[str, Any]) -> None:
    os.chdir(job["folder"])
    for name, descriptor in (("out.txt", 1), ("err.txt", 2)):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), descriptor)
    module, _, function = job["call"].partition(":")
    try:
        code = getattr(importlib.import_module(module), function)(job["arguments"])
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code or 0)
    except BaseException:
        import traceback

        traceback.print_exc()
        os._exit(99)


if __name__ == "__main__":
    _serve()
