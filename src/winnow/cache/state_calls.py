"""Calls of the compiled library in a recorded pass that change states of linear layers, made again for fewer tokens.

Linear states keep no tokens. But the memory of a recording keeps what every token brought to them, so that a pass whose
last tokens were wrong need not be done again as a whole: states are put back, and take the right tokens alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from ctypes import Structure, c_int32

import torch
from torch import Tensor

from winnow.kernels.native_args import DTYPES
from winnow.kernels.recording import LibraryCall
from winnow.kernels.repeated import RepeatedCalls

_RECURRENT = frozenset(("winnow_delta", "winnow_scan"))


class StateCalls:
    """Calls for all states of one row."""

    @classmethod
    def among(
        cls,
        calls: Iterable[object],
        convolved: Sequence[Tensor],
        recurrent: Sequence[Tensor],
        count: int,
        threads: c_int32,
        alive: object,
    ) -> StateCalls | None:
        """Those among all calls of a recorded pass of `count` tokens; None where some states change in another way.

        convolved: the states [1, C, L] of convolutions, in the order of layers; recurrent: all others. threads: to use,
        which may be others every time. alive: owner of the memory of the recording, which may be gone before these are.
        """
        of_library = [each for each in calls if isinstance(each, LibraryCall)]
        found = [each for each in of_library if each.function in _RECURRENT]
        if sorted(each.arguments.states or 0 for each in found) != sorted(each.data_ptr() for each in recurrent):
            return None
        convolutions = [each for each in of_library if each.function == "winnow_convolve"]
        if len(convolutions) != len(convolved):
            return None
        most = max((count * states.shape[1] * states.element_size() for states in convolved), default=0)
        unread = torch.empty(most, dtype=torch.uint8, device="cpu")
        for call, states in zip(convolutions, convolved, strict=True):
            moving = _moving(call, states, count, unread)
            if moving is None:
                return None
            found.append(moving)
        whole = all(each.arguments.rows == 1 for each in found)
        return cls(found, threads, (unread, alive)) if whole else None

    def __init__(self, calls: Sequence[LibraryCall], threads: c_int32, alive: object) -> None:
        """alive: owners of all memory that calls read and write."""
        self._calls, self._threads, self._alive = calls, threads, alive
        self._of: dict[int, RepeatedCalls] = {}

    def take(self, tokens: int) -> None:
        """Has the states take so many of the latest replay's first tokens."""
        if tokens not in self._of:
            shorter = [_changed(each, tokens=tokens) for each in self._calls]
            self._of[tokens] = RepeatedCalls(shorter, self._threads)
        self._of[tokens]()


def _moving(call: LibraryCall, states: Tensor, count: int, unread: Tensor) -> LibraryCall | None:
    """A convolution that moves states on by `count` tokens; None where it is not certain to be theirs.

    Models put states and new tokens beside each other for passes of several tokens, and convolve both, without states.
    The outputs go to memory of their own, as those of the pass are inputs of other calls.
    """
    given, length = call.arguments, states.shape[-1]
    fits = given.dtype == DTYPES.get(states.dtype) and given.channels == states.shape[1] and states.is_contiguous()
    if not fits or given.states or given.tokens != length + count or length < given.taps - 1:
        return None
    first = given.inputs + length * given.input_token * states.element_size()
    moved = _changed(call, inputs=first, tokens=count, outputs=unread.data_ptr())
    return _changed(moved, states=states.data_ptr(), state_length=length)


def _changed(call: LibraryCall, **values: int) -> LibraryCall:
    """The call with other arguments, the memory of which is its own."""
    arguments: Structure = type(call.arguments).from_buffer_copy(call.arguments)
    for name, value in values.items():
        setattr(arguments, name, value)
    return call._replace(arguments=arguments)
