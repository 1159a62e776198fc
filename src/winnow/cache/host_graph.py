"""A step of a CPU as a list of what it does to its memory: operators of torch, and calls of the compiled library.

On a small model most of a step is Python that works out what to do, which is the same for every token. Recorded, that
is done once; the next tokens repeat the work itself, on the very memory of the recorded one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from ctypes import c_int32
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple, NoReturn, TypeAlias

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from winnow.cache.linear_states import LinearStates
from winnow.cache.operators import Kind, adds_rows, into_memory, kind_of, made_by, takes_places
from winnow.cache.state_calls import StateCalls
from winnow.kernels.recording import LibraryCall, this_thread
from winnow.kernels.repeated import RepeatedCalls

MOST_BYTES = 256 << 20
"""Bytes of what a step makes in between, at most: more than tokens take, less than weights that a step writes out."""
_UNSEEN = frozenset((Tensor.tolist, Tensor.numpy, Tensor.__array__, Tensor.__dlpack__))
"""Ways for the host to numbers that are no operators."""
_Call: TypeAlias = Callable[[], object] | LibraryCall
"""Work that is done again."""


class HostGraph:
    """Work of a CPU that is done while it is recorded, and done again by `replay`; the first one finds it done.

    Memory for all that lies between is its own. Raises RuntimeError for work in which the host looks at numbers.
    """

    def __init__(self, work: Callable[[], Tensor], device: torch.device) -> None:
        recording = _Recording()
        with recording.listening():
            self.output = work()
        self._recording = recording
        self._done = True

    def replay(self) -> None:
        """The work once more, of the numbers that its memory has now."""
        if not self._done:
            self._recording.repeat()
        self._done = False

    def state_calls(self, states: LinearStates, count: int) -> StateCalls | None:
        """The calls that change states in a pass of `count` tokens; None where some change in another way."""
        return self._recording.state_calls(states, count)


class _Sum(NamedTuple):
    """Two tensors, their sum, and how many calls were noted when it was."""

    one: Tensor
    other: Tensor
    result: Tensor
    calls: int

    def is_in(self, tensor: Tensor) -> bool:
        """True for a contiguous tensor that is the whole sum, of whatever shape."""
        result = self.result
        alike = tensor.dtype is result.dtype and tensor.numel() == result.numel()
        return alike and tensor.data_ptr() == result.data_ptr()


class _Recording(TorchDispatchMode):
    """Operators and calls of one thread, in their order."""

    def __init__(self) -> None:
        super().__init__()
        self.threads = c_int32(torch.get_num_threads())
        self._calls: list[_Call] = []
        self._together: list[Callable[[], object]] | None = None
        self._alive: list[object] = []
        self._bytes = 0
        self._rests = False
        self._sum: _Sum | None = None

    def repeat(self) -> None:
        """All of them once more."""
        self.threads.value = torch.get_num_threads()
        if self._together is None:
            self._together = list(_together(self._calls, self.threads))
        for work in self._together:
            work()

    def state_calls(self, states: LinearStates, count: int) -> StateCalls | None:
        """See `HostGraph.state_calls`."""
        return StateCalls.among(self._calls, states.convolved(), states.recurrent(), count, self.threads, self._alive)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Notes what this thread does within."""
        this_thread.recording = self
        try:
            with self, _Refusing():
                yield
        finally:
            this_thread.recording = None

    def note_call(self, call: LibraryCall, *alive: object) -> None:
        """See `CallRecording.note_call`."""
        self._calls.append(call)
        self._alive.extend(alive)

    def note(self, call: Callable[[], int], error: Callable[[int], Exception], *alive: object) -> None:
        """See `CallRecording.note`."""

        def again() -> None:
            status = call()
            if status:
                raise error(status)

        self._calls.append(again)
        self._alive.extend(alive)

    def taken_sum(self, of: Tensor) -> tuple[Tensor, Tensor] | None:
        """See `CallRecording.taken_sum`."""
        last = self._sum
        if last is None or len(self._calls) != last.calls or not last.is_in(of):
            return None
        self._calls.pop()
        self._sum = None
        return last.one, last.other

    def anew(self, work: Callable[[], Tensor]) -> Tensor:
        """The tensor that work gives, which is gone through as a whole every time."""
        with self._paused():
            found = work()

        def again() -> None:
            found.copy_(work())

        self._calls.append(again)
        self._keep(found, [found])
        return found

    @contextmanager
    def _paused(self) -> Iterator[None]:
        """Notes nothing within."""
        this_thread.recording, self._rests = None, True
        try:
            yield
        finally:
            this_thread.recording, self._rests = self, False

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._rests:
            return function(*args, **kwargs)
        kind = kind_of(function)
        if kind is Kind.LOOK and not takes_places(function, args):
            _refuse(str(function))
        result = function(*args, **kwargs)
        made = [] if kind in (Kind.VIEW, Kind.CHANGE) else made_by(args, kwargs, result)
        if kind is Kind.CHANGE:
            self._calls.append(partial(function, *args, **kwargs))
        elif kind is Kind.CONSTANT:
            self._calls.append(partial(result.copy_, result.clone()))
        elif made and kind is not Kind.EMPTY:
            self._calls.append(into_memory(function, args, kwargs, made))
            if adds_rows(function, args, kwargs):
                one, other = args
                self._sum = _Sum(one, other, made[0], len(self._calls))
        self._keep(result, made)
        return result

    def _keep(self, result: Any, made: list[Tensor]) -> None:
        self._alive.append(result)
        self._bytes += sum(each.nbytes for each in made)
        if self._bytes > MOST_BYTES:
            raise RuntimeError(f"a step makes more than {MOST_BYTES >> 20} MB in between, all of which would stay")


def _together(calls: Sequence[_Call], threads: c_int32) -> Iterator[Callable[[], object]]:
    """Calls in their order, those of the library that follow each other as one."""
    for _, some in groupby(calls, lambda call: isinstance(call, LibraryCall)):
        found = list(some)
        of_library = [each for each in found if isinstance(each, LibraryCall)]
        if of_library:
            yield RepeatedCalls(of_library, threads)
        yield from (each for each in found if not isinstance(each, LibraryCall))


class _Refusing(TorchFunctionMode):
    """Raises RuntimeError for what is no operator, and would give numbers to the host unseen."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in _UNSEEN and this_thread.recording is not None:
            _refuse(function.__name__)
        return function(*args, **(kwargs or {}))


def _refuse(what: str) -> NoReturn:
    raise RuntimeError(f"{what} gives numbers to the host")
