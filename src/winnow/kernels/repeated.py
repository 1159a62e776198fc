"""Calls of the compiled library that are made again one after another, without Python between them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from winnow.kernels import native
from winnow.kernels.native_args import REPEATED, CallArgs
from winnow.kernels.recording import LibraryCall


class RepeatedCalls:
    """Calls as the library reads them.

    Whoever makes them keeps the memory alive that they read and write.
    """

    def __init__(self, calls: Sequence[LibraryCall], threads: ctypes.c_int32) -> None:
        """threads: to use, which may be others every time."""
        self._calls, self._threads = calls, threads
        self._arguments = (CallArgs * len(calls))(*map(_arguments, calls))
        self._done = ctypes.c_int64()
        self._repeat = native.loaded_library().winnow_repeat

    def __call__(self) -> None:
        """Makes all of them once more. Raises the error of the first that fails."""
        status = self._repeat(self._arguments, len(self._calls), self._threads, ctypes.byref(self._done))
        if status:
            raise self._calls[self._done.value].error(status)


def _arguments(call: LibraryCall) -> CallArgs:
    memory = (ctypes.c_void_p * 4)(*call.memory)
    return CallArgs(REPEATED[call.function], call.rows, ctypes.addressof(call.arguments), memory)
