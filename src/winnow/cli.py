"""The `winnow` program: commands, and errors as one line."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

try:
    import rich  # noqa: F401
    import typer
except ImportError:
    raise SystemExit('The winnow command needs two more packages: pip install "winnow-kv[cli]"') from None

import torch

import winnow
from winnow.commands.ask import ask
from winnow.commands.compress import compress
from winnow.commands.console import messages, output, silence_libraries
from winnow.commands.demo import demo
from winnow.commands.heads.cokv import cokv
from winnow.commands.heads.merge import merge
from winnow.commands.heads.needle import needle
from winnow.commands.heads.tables import heads
from winnow.commands.heads.tune import tune
from winnow.commands.heads.verify import verify
from winnow.commands.inspect import inspect
from winnow.commands.methods import methods
from winnow.commands.run import run
from winnow.errors import BudgetError, MethodError, WinnowError
from winnow.kernels import backend

INTERRUPTED = 130
USAGE = 2
FAILED = 1

app = typer.Typer(
    name="winnow",
    help="Long-context language models in a fraction of their KV-cache memory.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.command()(run)
app.command()(compress)
app.command()(ask)
app.command()(methods)
app.command()(demo)
app.command()(inspect)
heads.command()(needle)
heads.command()(cokv)
heads.command()(merge)
heads.command()(tune)
heads.command()(verify)
app.add_typer(heads)


def _print_version(wanted: bool) -> None:
    if wanted:
        output().print(f"winnow {winnow.__version__} (kernels: {backend()})")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Version and kernel backend."),
    ] = False,
) -> None:
    """Options that come before the command."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the program; returns its exit code: 0, 1 (failed), 2 (wrong usage) or 130 (interrupted)."""
    silence_libraries()
    command = typer.main.get_command(app)
    try:
        code = command.main(
            args=None if arguments is None else list(arguments), prog_name="winnow", standalone_mode=False
        )
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except (BudgetError, MethodError) as problem:
        return _fail(str(problem), USAGE)
    except WinnowError as problem:
        return _fail(str(problem), FAILED)
    except Exception as problem:
        if _is_out_of_memory(problem):
            return _fail("Out of memory: give a smaller --chunk, a shorter document or --dtype bfloat16.", FAILED)
        return _usage_error(problem)
    if code == INTERRUPTED:
        return _fail("Interrupted.", INTERRUPTED)
    return code if isinstance(code, int) else 0


def _is_out_of_memory(problem: Exception) -> bool:
    """torch has an exception of its own for accelerators only; on the CPU the text tells."""
    return isinstance(problem, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(problem)


def _usage_error(problem: Exception) -> int:
    """Typer's own errors, of whichever version: they know their text and exit code."""
    written = getattr(problem, "format_message", None)
    if written is None:
        raise problem
    return _fail(written() or "Give a command; see winnow --help.", getattr(problem, "exit_code", USAGE))


def _fail(text: str, code: int) -> int:
    messages().print(text, style=None if code == INTERRUPTED else "red", soft_wrap=True, markup=False)
    return code


if __name__ == "__main__":
    sys.exit(main())
