"""A step of a CPU as a list of what it does to its memory: operators of torch, and calls of the compiled library.

On a small model most of a step is Python that works out what to do, which is the same for every token. Recorded, that
is done once; the next tokens repeat the work itself, on the very memory of the recorded one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import c_int32
from functools import partial
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from winnow.cache.operators import Kind, into_memory, kind_of, made_by, takes_places
from winnow.kernels.recording import this_thread

MOST_BYTES = 256 << 20
"""Bytes of what a step makes in between, at most: more than tokens take, less than weights that a step writes out."""
_UNSEEN = frozenset((Tensor.tolist, Tensor.numpy, Tensor.__array__, Tensor.__dlpack__))
"""Ways for the host to numbers that are no operators."""


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


class _Recording(TorchDispatchMode):
    """Operators and calls of one thread, in their order."""

    def __init__(self) -> None:
        super().__init__()
        self.threads = c_int32(torch.get_num_threads())
        self._calls: list[tuple[Callable[[], int | None], Callable[[int], Exception] | None]] = []
        self._alive: list[object] = []
        self._bytes = 0
        self._rests = False

    def repeat(self) -> None:
        """All of them once more."""
        self.threads.value = torch.get_num_threads()
        for call, error in self._calls:
            status = call()
            if error is not None and status:
                raise error(status)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Notes what this thread does within."""
        this_thread.recording = self
        try:
            with self, _Refusing():
                yield
        finally:
            this_thread.recording = None

    def note(self, call: Callable[[], int | None], error: Callable[[int], Exception], *alive: object) -> None:
        """Takes note of a call of the library."""
        self._calls.append((call, error))
        self._alive.extend(alive)

    def anew(self, work: Callable[[], Tensor]) -> Tensor:
        """The tensor that work gives, which is gone through as a whole every time."""
        with self._paused():
            found = work()

        def again() -> None:
            found.copy_(work())

        self._calls.append((again, None))
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
            self._calls.append((partial(function, *args, **kwargs), None))
        elif kind is Kind.CONSTANT:
            self._calls.append((partial(result.copy_, result.clone()), None))
        elif made and kind is not Kind.EMPTY:
            self._calls.append((into_memory(function, args, kwargs, made), None))
        self._keep(result, made)
        return result

    def _keep(self, result: Any, made: list[Tensor]) -> None:
        self._alive.append(result)
        self._bytes += sum(each.nbytes for each in made)
        if self._bytes > MOST_BYTES:
            raise RuntimeError(f"a step makes more than {MOST_BYTES >> 20} MB in between, all of which would stay")


class _Refusing(TorchFunctionMode):
    """Raises RuntimeError for what is no operator, and would give numbers to the host unseen."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in _UNSEEN and this_thread.recording is not None:
            _refuse(function.__name__)
        return function(*args, **(kwargs or {}))


def _refuse(what: str) -> NoReturn:
    raise RuntimeError(f"{what} gives numbers to the host")
