"""The `winnow` program: its exit codes, and errors as one line.

Imports of other modules stand inside the functions, so that an interrupt during them is answered, too.
"""

from __future__ import annotations

import sys

from winnow.commands.interrupts import INTERRUPTED, end_at_once

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

USAGE = 2
FAILED = 1


def program() -> None:
    """Runs the command line that the process was started with, and ends the process."""
    end_at_once()
    sys.exit(main())


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command line, by default the process's own.

    Returns its exit code: 0, 1 (failed), 2 (wrong usage) or 130 (interrupted).
    """
    try:
        return _run(arguments)
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        return INTERRUPTED


def _run(arguments: Sequence[str] | None) -> int:
    try:
        import rich  # noqa: F401
        import typer
    except ImportError:
        raise SystemExit('The winnow command needs two more packages: pip install "winnow-kv[cli]"') from None
    from winnow.commands.app import app
    from winnow.errors import BudgetError, MethodError, WinnowError

    command = typer.main.get_command(app)
    given = None if arguments is None else list(arguments)
    try:
        code = command.main(args=given, prog_name="winnow", standalone_mode=False)
    except typer.Abort:
        raise KeyboardInterrupt from None
    except (BudgetError, MethodError) as problem:
        return _fail(str(problem), USAGE)
    except WinnowError as problem:
        return _fail(str(problem), FAILED)
    except Exception as problem:
        if _is_out_of_memory(problem):
            return _fail("Out of memory: give a smaller --chunk, a shorter document or --dtype bfloat16.", FAILED)
        return _usage_error(problem)
    if code == INTERRUPTED:
        raise KeyboardInterrupt
    return code if isinstance(code, int) else 0


def _is_out_of_memory(problem: Exception) -> bool:
    """torch has an exception of its own for accelerators only, told by its name here; on the CPU the text tells."""
    return (
        isinstance(problem, MemoryError)
        or type(problem).__name__ == "OutOfMemoryError"
        or "can't allocate memory" in str(problem)
    )


def _usage_error(problem: Exception) -> int:
    """Typer's own errors, of whichever version: they know their text and exit code."""
    written = getattr(problem, "format_message", None)
    if written is None:
        raise problem
    return _fail(written() or "Give a command; see winnow --help.", getattr(problem, "exit_code", USAGE))


def _fail(text: str, code: int) -> int:
    from winnow.commands.console import messages

    messages().print(text, style="red", soft_wrap=True, markup=False)
    return code


if __name__ == "__main__":
    program()
