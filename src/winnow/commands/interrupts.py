"""Ctrl-C, while libraries are imported and afterwards, and requests to end."""

from __future__ import annotations

import os
import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType

_is_program = False
"""True in a process that runs commands; others keep their signals."""

INTERRUPTED = 130
"""Exit code of an interrupted program."""


def end_at_once() -> None:
    """From here on, an interrupt ends the process without unwinding it.

    A KeyboardInterrupt could be lost, or become another error, on its way through libraries that are half imported.
    """
    global _is_program
    _is_program = True
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def raise_again() -> None:
    """From here on, an interrupt raises KeyboardInterrupt, as usual, and so does a request to end.

    Schedulers and `timeout` send SIGTERM, and a terminal that is closed SIGHUP: as much is to be kept as before Ctrl-C,
    also where a shell started the command in the background, which ignores that.
    """
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for request in (signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)):
        if _is_program and signal.getsignal(request) is signal.SIG_DFL:
            signal.signal(request, _stop)


def _stop(number: int, frame: FrameType | None) -> None:
    from winnow.errors import Ended

    raise Ended


def _end(number: int, frame: FrameType | None) -> None:
    os.write(2, b"Interrupted.\n")
    os._exit(INTERRUPTED)
