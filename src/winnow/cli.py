"""The `winnow` program: its exit codes, and errors as one line.

Imports of other modules stand inside the functions, so that an interrupt during them is answered, too.
"""

from __future__ import annotations

import os
import sys

from winnow.commands.interrupts import INTERRUPTED, end_at_once

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

_LIMITS = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
"""Variables that oneDNN and its part in torch read when they are first used."""
_PRODUCTS = "128"
"""Products of matrices that they keep code for, in place of 1024: more than a model has, of prompts of one length."""
_WAITS = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
"""Variables by which GCC's OpenMP, which torch's packages bring, is told how long its threads look for work awake."""
ROUNDS_AWAKE = "2000"
"""Rounds of that, in place of 300,000."""
_THREADS = "OMP_NUM_THREADS"
"""Threads of OpenMP, which are otherwise as many as the machine has processors."""


def program() -> NoReturn:
    """Runs the command line that the process was started with, and ends the process."""
    end_at_once()
    _prepare_libraries()
    from winnow.commands import streams

    streams.prepare()
    code = main()
    # What is left are other libraries that clean up.
    end_at_once()
    sys.exit(code)


def _prepare_libraries() -> None:
    """Sets in the environment what torch and its libraries read when they are loaded, unless it is set."""
    # Else a process that reads prompts of many lengths grows by hundreds of MB: every length has products of its own.
    for limit in _LIMITS:
        os.environ.setdefault(limit, _PRODUCTS)
    # Else a thread that waits holds the core that the one it waits for could have, where other programs want cores,
    # too. A token then takes many times as long.
    if not any(name in os.environ for name in _WAITS):
        os.environ[_WAITS[0]] = ROUNDS_AWAKE
    from winnow.commands.container_threads import container_threads

    threads = None if _THREADS in os.environ else container_threads()
    if threads is not None:
        os.environ[_THREADS] = str(threads)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command line, by default the process's own.

    Returns its exit code: 0, 1 (failed), 2 (wrong usage), 70 (an unexpected error) or 130 (interrupted).
    """
    try:
        code = _run(arguments)
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        code = INTERRUPTED
    return _finished(code)


def _run(arguments: Sequence[str] | None) -> int:
    try:
        import rich  # noqa: F401
        import typer
    except ImportError:
        raise SystemExit('The winnow command needs two more packages: pip install "winnow-kv[cli]"') from None
    from winnow.commands.app import Invocation, app
    from winnow.commands.failures import report
    from winnow.commands.invoked import LINE

    command = typer.main.get_command(app)
    given = sys.argv[1:] if arguments is None else list(arguments)
    LINE.set(("winnow", *given))
    invocation = Invocation()
    try:
        code = command.main(args=given, prog_name="winnow", standalone_mode=False, obj=invocation)
    except typer.Abort:
        raise KeyboardInterrupt from None
    except SystemExit as ended:
        # Typer and rich end so where nobody reads standard output any more.
        code = ended.code
    except Exception as problem:
        return report(problem, invocation.traceback)
    if code == INTERRUPTED:
        raise KeyboardInterrupt
    return code if isinstance(code, int) else 0


def _finished(code: int) -> int:
    """The exit code, once everything printed has arrived."""
    from winnow.commands import streams
    from winnow.commands.failures import report_unwritten

    problem = streams.unwritten()
    return code if problem is None else report_unwritten(problem)


if __name__ == "__main__":
    program()
