"""Calls of the compiled library while a step is recorded: they are noted, to be made again on the same memory."""

from __future__ import annotations

import threading
from collections.abc import Callable
from ctypes import c_int32
from typing import Protocol

from torch import Tensor


class CallRecording(Protocol):
    """A recorder of calls of the library."""

    threads: c_int32
    """The threads to use, which may be others whenever calls are made again."""

    def note(self, call: Callable[[], int | None], error: Callable[[int], Exception], *alive: object) -> None:
        """Takes note of a call that was made.

        call: makes it again, and returns its status: 0 or None if it went well. error: that of another status. alive:
        owners of the memory that it reads and writes.
        """

    def anew(self, work: Callable[[], Tensor]) -> Tensor:
        """The tensor that work gives, in which the host looks at numbers: it is gone through again every time."""


class _Thread(threading.local):
    recording: CallRecording | None = None


this_thread = _Thread()
"""The recorder of a thread's calls, if there is one: looked up at every call, so without a function."""


def refuse_recording(what: str) -> None:
    """Raises RuntimeError while this thread is recorded, for calls that are not noted."""
    if this_thread.recording is not None:
        raise RuntimeError(f"{what} cannot be recorded")
