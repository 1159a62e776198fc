"""Ctrl-C, while libraries are imported and afterwards, and requests to end."""

from __future__ import annotations

import os
import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType

INTERRUPTED = 130
"""Exit code of an interrupted program."""


def end_at_once() -> None:
    """From here on, an interrupt ends the process without unwinding it.

    A KeyboardInterrupt could be lost, or become another error, on its way through libraries that are half imported.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def raise_again() -> None:
    """From here on, an interrupt raises KeyboardInterrupt, as usual, and so does a request to end.

    Schedulers and `timeout` send SIGTERM, before which as much is to be kept as before Ctrl-C.
    """
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, signal.default_int_handler)


def _end(number: int, frame: FrameType | None) -> None:
    os.write(2, b"Interrupted.\n")
    os._exit(INTERRUPTED)
