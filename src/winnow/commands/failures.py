"""Errors of a command, as one line on standard error and as an exit code; the log has the rest."""

from __future__ import annotations

import logging
import re
import sys
import traceback
from contextlib import suppress

from winnow.commands import streams
from winnow.commands.console import messages
from winnow.errors import BudgetError, MethodError, WinnowError, is_out_of_memory
from winnow.tasks.benchmark import UnknownBenchmark

FAILED = 1
USAGE = 2
UNEXPECTED = 70
"""Exit code of an error that nobody thought of, as in sysexits.h."""

LOG = logging.getLogger("winnow")
# Without a handler of somebody's, Python would print errors a second time.
LOG.addHandler(logging.NullHandler())

_FOREIGN = "Value error, "
"""Words that typer leaves before some reasons."""
_UNKNOWN = ("UsageError", "NoSuchOption")
"""Typer's errors, of whichever version, for words of a command line that mean nothing to a command."""
_EXTRA = "extra argument"
"""Typer's words for a word too many."""
_BRACES = str.maketrans("", "", "{}")
"""Signs that typer puts around arguments."""
_LONGEST_WORD, _LONGEST_TEXT = 200, 2000


def report(problem: Exception, with_traceback: bool) -> int:
    """Prints what went wrong, and after it the traceback where that is asked for; returns the exit code."""
    unwritten = streams.unwritten()
    if unwritten is not None or _is_of_output(problem):
        return report_unwritten(unwritten or problem)
    text, code = _told(problem)
    LOG.log(logging.ERROR if code == UNEXPECTED else logging.DEBUG, "%s", text, exc_info=problem)
    _print(text)
    if with_traceback:
        with suppress(OSError, ValueError):
            print("".join(traceback.format_exception(problem)), end="", file=sys.stderr)
    return code


def report_unwritten(problem: Exception) -> int:
    """Prints that standard output cannot be written to, unless nobody reads it any more; returns the exit code."""
    if not isinstance(problem, BrokenPipeError):
        _print(f"Cannot write to standard output: {getattr(problem, 'strerror', None) or problem}.")
    return FAILED


def _told(problem: Exception) -> tuple[str, int]:
    """Line and exit code of an error."""
    if isinstance(problem, BudgetError | MethodError | UnknownBenchmark):
        return str(problem), USAGE
    if isinstance(problem, WinnowError):
        return str(problem), FAILED
    if is_out_of_memory(problem):
        return (
            "Out of memory: use a shorter document, another --chunk or --dtype bfloat16 (see docs/troubleshooting.md).",
            FAILED,
        )
    # Typer's own errors, of whichever version: they know their text and exit code.
    written = getattr(problem, "format_message", None)
    if written is not None:
        text = " ".join(written().split()).replace(_FOREIGN, "")
        told = f"{text}{_usage(problem, text)}"
        return told or "Give a command; winnow --help lists them.", getattr(problem, "exit_code", USAGE)
    said = next(iter(str(problem).strip().splitlines()), "")
    return (
        f"Unexpected error, {type(problem).__name__}{': ' if said else ''}{said} (winnow --traceback COMMAND … shows "
        "where it came from; please report it).",
        UNEXPECTED,
    )


def _usage(problem: Exception, after: str) -> str:
    """Words on how a command is called, after a text about an option or an argument that it does not have."""
    context = getattr(problem, "ctx", None)
    if context is None or type(problem).__name__ not in _UNKNOWN or hasattr(context.command, "commands"):
        return ""
    usage = " ".join(context.get_usage().split()).translate(_BRACES)
    named = any("--model" in each.opts for each in context.command.params)
    hint = " Name a model with --model." if named and _EXTRA in after else ""
    return (
        f"{'' if after.endswith(('.', '?')) else '.'}{hint} {usage}; {context.command_path} --help lists the options."
    )


def _is_of_output(problem: Exception) -> bool:
    """True for what printing raises; files that are written and read say in words what is wrong with them."""
    return isinstance(problem, OSError) and problem.filename is None and streams.can_fail_with(problem.errno)


def _print(text: str) -> None:
    with suppress(OSError, ValueError):
        messages().print(readable(text), style="red", soft_wrap=True, markup=False)


def readable(text: str) -> str:
    """A message that fits on a screen and does nothing to it: cut where it is long, control characters spelled out."""
    cut = re.sub(rf"\S{{{_LONGEST_WORD},}}", lambda word: _without_middle(word[0], _LONGEST_WORD), text)
    shown = _without_middle(cut, _LONGEST_TEXT)
    return "".join(each if each.isprintable() or each == "\n" else repr(each)[1:-1] for each in shown)


def _without_middle(text: str, longest: int) -> str:
    half = longest // 2
    return text if len(text) <= longest else f"{text[:half]}…{text[-half:]}"
