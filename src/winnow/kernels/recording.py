"""Calls of the compiled library while a step is recorded: they are noted, to be made again on the same memory."""

from __future__ import annotations

import threading
from collections.abc import Callable
from ctypes import Structure, c_int32
from typing import NamedTuple, Protocol

from torch import Tensor


class LibraryCall(NamedTuple):
    """A call of the library with all that it takes but for threads."""

    function: str
    """One of those that `winnow_repeat` calls, as it is named in `native/winnow_native.h`."""
    arguments: Structure
    error: Callable[[int], Exception]
    """That of a status which is not 0."""
    rows: int = 0
    memory: tuple[int, ...] = ()
    """Addresses of rows, in their order."""


class CallRecording(Protocol):
    """A recorder of calls of the library."""

    threads: c_int32
    """The threads to use, which may be others whenever calls are made again."""

    def note_call(self, call: LibraryCall, *alive: object) -> None:
        """Takes note of a call that was made. alive: owners of the memory that it reads and writes."""

    def note(self, call: Callable[[], int], error: Callable[[int], Exception], *alive: object) -> None:
        """Takes note of one in which Python has a part.

        call: makes it again, and returns its status: 0 if it went well. error: that of another status. alive: as above.
        """

    def taken_sum(self, of: Tensor) -> tuple[Tensor, Tensor] | None:
        """The two tensors whose sum this one is, if an operator that added them is what was noted last.

        It is no longer noted then: whoever asks adds them, to the same memory.
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
