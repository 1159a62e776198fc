"""Standard streams that are closed, full, or read by nobody any more."""

from __future__ import annotations

import errno
import os
import stat
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TextIO


_FULL = (errno.EDQUOT, errno.EFBIG, errno.ENOSPC)


def prepare() -> None:
    """Makes the process's standard streams ones that fail in words.

    One that is closed is opened so that using it fails; else the next file would get its number, and its output. And
    every character can be printed, those that the encoding does not have as an escape.
    """
    for number, wrong in enumerate((os.O_WRONLY, os.O_RDONLY, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            # The lowest free number is this one.
            os.open(os.devnull, wrong)
    sys.stdin = sys.stdin or os.fdopen(0, encoding="utf-8", closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", encoding="utf-8", closefd=False)
    for stream in (sys.stdout, sys.stderr):
        _spell_out(stream)


def _spell_out(stream: TextIO) -> None:
    """Lets a text stream write any character."""
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="backslashreplace")


def unwritten() -> OSError | ValueError | None:
    """Writes what standard output still holds; returns the problem where that cannot be, and gives it up."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError) as problem:
        _give_up(sys.stdout)
        return problem
    return None


def can_fail_with(number: int | None) -> bool:
    """True if standard output is of a kind that fails with this number: no terminal and no pipe is ever full."""
    try:
        kind = os.fstat(sys.stdout.fileno()).st_mode
    except (OSError, ValueError):
        # Closed, or a stream of somebody's that is no file.
        return number == errno.EBADF
    if number in _FULL:
        return stat.S_ISREG(kind) or (stat.S_ISCHR(kind) and not sys.stdout.isatty())
    return number in (errno.EBADF, errno.EIO, errno.EPIPE)


def _give_up(stream: TextIO) -> None:
    """Lets a stream write to nowhere. Else the interpreter tries again when it ends, and says so."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
    except (OSError, ValueError):
        # Closed already.
        return
