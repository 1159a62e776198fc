"""The process behind `support.launcher`: it imports modules, and forks itself for every job.

It reads one job a line, {"code": "...", "arguments": [...], "folder": "...", "whole": false}, prints the number of
the process that does it, and when that has ended, how. What the process says goes to out.txt and err.txt in the folder.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
import traceback
from contextlib import suppress
from typing import Any


def next_job() -> dict[str, Any]:
    """A job, in the process that is to do it; the other one waits for the next."""
    for line in sys.stdin:
        number = os.fork()
        if not number:
            job: dict[str, Any] = json.loads(line)
            return job
        print(number, flush=True)
        sys.stdin.readline()
        print(os.waitstatus_to_exitcode(os.waitpid(number, 0)[1]), flush=True)
    os._exit(0)


def set_up(job: dict[str, Any]) -> None:
    """Makes everything look as at the beginning of `python -c`."""
    sys.argv = ["-c", *job["arguments"]]
    os.chdir(job["folder"])
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for name, descriptor in (("out.txt", 1), ("err.txt", 2)):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), descriptor)


def status_of(code: str) -> int:
    """Runs code; the status that `python -c` would end with."""
    try:
        exec(code, {"__name__": "__main__"})
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    for name in sys.argv[1:]:
        # Of one that is not installed a job that needs it tells.
        with suppress(ModuleNotFoundError):
            importlib.import_module(name)
    gc.freeze()  # collecting would copy what parent and child share
    job = next_job()
    set_up(job)
    if job["whole"]:
        gc.unfreeze()
        exec(job["code"], {"__name__": "__main__"})
        sys.exit()
    status = status_of(job["code"])
    sys.stdout.flush()
    sys.stderr.flush()
    # Taking all modules down would take a second.
    os._exit(status)
