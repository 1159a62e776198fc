"""Cases in a process of its own, so that one that kills it is told by its signal and the next goes on in a new one."""

from __future__ import annotations

import faulthandler
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import traceback
from importlib import import_module
from pathlib import Path
from typing import Any

from support.processes import environment

TESTS = Path(__file__).parents[1]
PATIENCE = 180.0
"""Seconds after which a case hangs."""
MEMORY = 3 << 30
"""Bytes of addresses that cases may take beyond what the process has when it starts."""


class WorkerDied(AssertionError):
    """The process of a case ended, or had to be ended."""


class Worker:
    """A process that runs functions of the tests, one after another."""

    def __init__(self, memory: int = MEMORY, **variables: str) -> None:
        self._memory, self._variables = memory, variables
        self._process: subprocess.Popen[str] | None = None
        self._told = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 (closed with the worker)

    def run(self, function: str, **arguments: Any) -> Any:
        """The result of "module:function" for arguments, both as plain JSON values.

        Raises WorkerDied where the process crashes, hangs or exits, AssertionError where the function raises.
        """
        process = self._started()
        assert process.stdin
        assert process.stdout
        process.stdin.write(json.dumps({"function": function, "arguments": arguments}) + "\n")
        process.stdin.flush()
        ready, _, _ = select.select([process.stdout], [], [], PATIENCE)
        answer = process.stdout.readline() if ready else ""
        if not answer:
            raise WorkerDied(self._epitaph(process, hangs=not ready))
        reply = json.loads(answer)
        assert "raised" not in reply, reply["raised"]
        return reply["returned"]

    def close(self) -> None:
        """Ends the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
        self._told.close()

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None:
            self._told.seek(0)
            self._told.truncate()
            self._process = subprocess.Popen(
                [sys.executable, "-c", f"from support.worker import serve; serve({self._memory})"],
                env=environment(TESTS, **self._variables),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._told,
                text=True,
            )
        return self._process

    def _epitaph(self, process: subprocess.Popen[str], hangs: bool) -> str:
        """Words on a process that is gone; the next case gets a new one."""
        self._process = None
        if hangs:
            process.kill()
        process.communicate()
        self._told.seek(0)
        said = self._told.read()[-6000:]
        if hangs:
            return f"no answer after {PATIENCE:.0f} s\n{said}"
        code = process.returncode
        return f"died of {signal.Signals(-code).name if code < 0 else f'exit code {code}'}\n{said}"


def serve(memory: int) -> None:
    """Answers what `Worker.run` writes, line by line; called in the worker's process."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    import torch
    import transformers.cache_utils  # noqa: F401 (what it maps is no case's doing)

    torch.set_num_threads(1)
    if not sanitized():
        # Sanitizers report crashes themselves and map terabytes.
        faulthandler.enable()
        _limit_addresses(memory)
    for line in sys.stdin:
        asked = json.loads(line)
        module, _, name = asked["function"].partition(":")
        try:
            reply = {"returned": getattr(import_module(module), name)(**asked["arguments"])}
        except Exception:
            reply = {"raised": traceback.format_exc()}
        answers.write(json.dumps(reply) + "\n")
        answers.flush()


def sanitized() -> bool:
    """True in a process that a sanitizer was loaded into."""
    return "libasan" in os.environ.get("LD_PRELOAD", "")


def _limit_addresses(more: int) -> None:
    import resource

    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + more
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
