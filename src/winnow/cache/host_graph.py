"""A step of a CPU as a list of what it does to its memory: operators of torch, and calls of the compiled library.

On a small model most of a step is Python that works out what to do, which is the same for every token. Recorded, that
is done once; the next tokens repeat the work itself, on the very memory of the recorded one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import c_int32
from functools import cache, partial
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from winnow.kernels.recording import this_thread

_ASKING = frozenset((torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape))
"""Operators of which the host wants numbers, or as many as the numbers say."""
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
        """What work gives, which is gone through as a whole every time."""
        with self._paused():
            found = work()

        def again() -> None:
            found.copy_(work())

        self._calls.append((again, None))
        self._alive.append(found)
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
        if not _ASKING.isdisjoint(function.tags) and not _takes_places(function, args):
            _refuse(str(function))
        result = function(*args, **kwargs)
        if function is torch.ops.aten.lift_fresh.default:  # numbers of the host, which work may change afterwards
            again: Callable[[], Any] | None = partial(result.copy_, result.clone())
        else:
            again = _again(function, args, kwargs, result)
        if again is not None:
            self._calls.append((again, None))
        self._alive.append(result)
        return result


class _Refusing(TorchFunctionMode):
    """Raises RuntimeError for what is no operator, and would give numbers to the host unseen."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in _UNSEEN and this_thread.recording is not None:
            _refuse(function.__name__)
        return function(*args, **(kwargs or {}))


def _takes_places(function: Any, args: Any) -> bool:
    """True for indexing by numbers of places, of which there are as many results; masks have as many as are true."""
    return function._schema.name == "aten::index" and not any(
        each.dtype in (torch.bool, torch.uint8) for each in args[1] if each is not None
    )


def _refuse(what: str) -> NoReturn:
    raise RuntimeError(f"{what} gives numbers to the host")


def _again(function: Any, args: Any, kwargs: dict[str, Any], result: Any) -> Callable[[], Any] | None:
    """What does an operator's work once more, into the memory of its result; None where there is nothing to do."""
    if function._schema.is_mutable:
        return partial(function, *args, **kwargs)
    made = list(_tensors(result))
    given = {_key(each) for each in _tensors((args, kwargs))}
    if "empty" in function._schema.name or all(_key(each) in given for each in made):
        return None
    into = _into(function)
    if into is not None and len(made) == 1:
        return partial(into[0], *args, **kwargs, **{into[1]: made[0]})

    def copied() -> None:
        for place, each in zip(made, _tensors(function(*args, **kwargs)), strict=True):
            place.copy_(each)

    return copied


@cache
def _into(function: Any) -> tuple[Any, str] | None:
    """The form of an operator that writes its result into a tensor, and the name that it takes that by."""
    wanted = [(each.name, str(each.type)) for each in function._schema.arguments]
    packet = function._overloadpacket
    for name in packet.overloads():
        form = getattr(packet, name)
        places = [each.name for each in form._schema.arguments if each.is_out]
        others = [(each.name, str(each.type)) for each in form._schema.arguments if not each.is_out]
        if len(places) == 1 and others == wanted:
            return form, places[0]
    return None


def _tensors(values: Any) -> Iterator[Tensor]:
    """Those anywhere in arguments or results of an operator."""
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, tuple | list):
        for each in values:
            yield from _tensors(each)
    elif isinstance(values, dict):
        yield from _tensors(tuple(values.values()))


def _key(tensor: Tensor) -> int:
    key: int = tensor.untyped_storage()._cdata
    return key
