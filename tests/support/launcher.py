"""Processes of their own that start at once: forks of one that has imported modules."""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from support.processes import environment

TESTS = Path(__file__).resolve().parents[1]
TICKS = os.sysconf("SC_CLK_TCK")
COMMANDS = tuple(
    f"winnow.commands.{name}"
    for name in ("run", "compress", "heads.cokv", "heads.needle", "heads.tune", "heads.verify")
)
"""Modules of commands, for tests of what they do once they are imported."""
BENEATH = (
    *("torch", "torch._dynamo", "torch.distributed.checkpoint", "torch.distributed.fsdp", "torch.distributed.tensor"),
    *("torch.nn.attention.flex_attention", "triton", "accelerate", "huggingface_hub", "jinja2", "PIL.Image", "psutil"),
    *("regex", "safetensors.torch", "sympy", "tokenizers", "yaml"),
)
"""Modules that transformers imports, for tests of processes in which neither it nor winnow has been."""


class Launcher:
    """A process that starts others."""

    def __init__(self, modules: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "support.launched", *modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # Read when the hub's library is imported; no test is to reach it.
            env=environment(TESTS, HF_HUB_OFFLINE="1"),
            # A test run in the background ignores interrupts, and its children would inherit that.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    def run(
        self, code: str, arguments: Sequence[str], folder: Path, end: Callable[[int], bool] = lambda _: False
    ) -> int:
        """The status that the process ended with: its exit code, or minus the signal.

        What it says goes to out.txt and err.txt in the folder, in which it runs.
        end: asked again and again with the number of the process; as soon as it says so, the process is killed.
        """
        number = self.start(code, arguments, folder)
        try:
            while not ended(number) and not end(number):
                # For the process to get on; nothing is decided by it.
                time.sleep(0.003)
        finally:
            status = self.wait(kill=not ended(number))
        return status

    def start(self, code: str, arguments: Sequence[str], folder: Path, whole: bool = False) -> int:
        """The number of a process, for which `wait` waits before another one starts.

        whole: Python takes itself down in the end, which takes a second.
        """
        assert self._process.stdin is not None
        job = {"code": code, "arguments": list(arguments), "folder": str(folder), "whole": whole}
        print(json.dumps(job), file=self._process.stdin, flush=True)
        self._number = self._answer()
        return self._number

    def wait(self, kill: bool = False) -> int:
        """The status that the process which was started ends with, once it ends or is killed."""
        assert self._process.stdin is not None
        if kill:
            os.kill(self._number, 9)
        print("wait", file=self._process.stdin, flush=True)
        return self._answer()

    def python(self, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs code as `support.processes.python` does, but for what was imported already."""
        latest = time.monotonic() + 120
        with TemporaryDirectory() as name:
            folder = Path(name)
            status = self.run(code, arguments, folder, lambda _: time.monotonic() > latest)
            said = [(folder / f"{stream}.txt").read_text(encoding="utf-8") for stream in ("out", "err")]
        return subprocess.CompletedProcess([code, *arguments], status, *said)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _answer(self) -> int:
        assert self._process.stdout is not None
        return int(self._process.stdout.readline())


@cache
def launcher(modules: tuple[str, ...]) -> Launcher:
    """The launcher of a whole test run with these modules; it ends with the run."""
    started = Launcher(modules)
    atexit.register(started.close)
    return started


def ended(number: int) -> bool:
    """True if a process has ended; nobody has waited for it yet."""
    return _stat(number)[0] == "Z"


def ticks(number: int) -> int:
    """Hundredths of a second that a process has worked."""
    user, system = _stat(number)[11:13]
    return (int(user) + int(system)) * 100 // TICKS


def _stat(number: int) -> list[str]:
    return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
