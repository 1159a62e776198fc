"""CUDA graphs emulated on the CPU: work on the GPU that stands in, recorded with its very memory and done again.

As on a device, recording does nothing: it notes every operation and launch with the memory that it reads and writes,
and the numbers of the host as they were. It refuses what waits for the device or sends there. A replay does what was
noted, so a number that the host should have changed since then is the old one, and memory that is gone is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from support import elsewhere
from support.elsewhere import GPU, Elsewhere, check_launch, done_here, gpu_stand_in
from support.nested import leaves, mapped


class _Outside(NamedTuple):
    """A view of memory that was there before: its address, which a graph does not keep alive."""

    storage: StorageWeakRef
    dtype: torch.dtype
    size: torch.Size
    stride: tuple[int, ...]
    offset: int

    def tensor(self) -> Tensor:
        """The view as it is now."""
        storage = torch.UntypedStorage._new_with_weak_ptr(self.storage.cdata)
        if storage is None:
            raise AssertionError(f"a graph reads or writes memory that is gone: {list(self.size)} of {self.dtype}")
        return torch.empty(0, dtype=self.dtype).set_(storage, self.offset, self.size, self.stride)


class Recording(TorchDispatchMode):
    """Operations on the GPU, noted."""

    def __init__(self) -> None:
        super().__init__()
        self.redo: list[Callable[[], None]] = []
        self.names: list[str] = []
        self._own: dict[int, Tensor] = {}  # by storage: memory of the graph
        self._working = False

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        given = [each for each in leaves((args, kwargs)) if isinstance(each, Elsewhere)]
        if not given:
            return function(*args, **kwargs)
        if function._schema.is_mutable:
            return self._note_change(function, args, kwargs)
        self._working = True
        try:
            result = function(*args, **kwargs)
        finally:
            self._working = False
        made = [each.here for each in leaves(result) if isinstance(each, Elsewhere)]
        before = {_key(each.here) for each in given}
        if made and not all(_key(each) in before for each in made):
            self._note(function, args, kwargs, made)
        return result

    def _note_change(self, function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """An operation that writes into its arguments, which is left for the replay."""
        arguments = dict(zip((each.name for each in function._schema.arguments), args, strict=False)) | kwargs
        written = [
            arguments[each.name]
            for each in function._schema.arguments
            if each.alias_info is not None and each.alias_info.is_write
        ]
        strangers = [each for each in leaves((args, kwargs)) if _is_of_host(each)]
        if strangers:
            refuse(f"{function}: numbers of the host")
        self._note(function, args, kwargs, [])
        returned = len(function._schema.returns)
        assert returned <= len(written), f"{function} is unknown to this instrument"
        return None if not returned else written[0]

    def _note(self, function: Any, args: Any, kwargs: dict[str, Any], made: list[Tensor]) -> None:
        for each in made:
            self._keep(each)
        kwargs = {name: torch.device("cpu") if name == "device" and each else each for name, each in kwargs.items()}
        kwargs.pop("pin_memory", None)
        args, kwargs = mapped(self._frozen, args), mapped(self._frozen, kwargs)
        empty = "empty" in function._schema.name

        def redo() -> None:
            if empty:
                return
            result = done_here(function, _thawed(args), _thawed(kwargs))
            found = [each for each in leaves(result) if isinstance(each, Tensor)]
            for into, each in zip(made, found if made else [], strict=True):
                into.copy_(each)

        self.names.append(function._schema.name)
        self.redo.append(redo)

    def launch(self, run: Callable[..., Any], kernel: Any, args: Any, kwargs: Any) -> None:
        """Notes a launch."""
        args, kwargs = mapped(self._frozen, args), mapped(self._frozen, kwargs)
        self.names.append(kernel.fn.__name__)
        self.redo.append(lambda: run(kernel, *_thawed(args), **_thawed(kwargs)))

    def constant(self, tensor: Tensor) -> Elsewhere:
        """Numbers that the device makes of numbers of the host: the same at every replay."""
        if isinstance(tensor, Elsewhere):
            return tensor
        if self._working:
            return Elsewhere(tensor)
        value = tensor.detach()
        first = value.clone()
        self._own[_key(value)] = value
        self.names.append("constant")
        self.redo.append(lambda: value.copy_(first))
        return Elsewhere(value)

    def _keep(self, tensor: Tensor) -> None:
        """Memory of the graph, with nothing in it yet."""
        self._own[_key(tensor)] = tensor
        tensor.fill_(torch.nan if tensor.is_floating_point() else 0)  # whole numbers may be indices

    def _frozen(self, value: Any) -> Any:
        if isinstance(value, Elsewhere):
            here = value.here
            if not here.numel() or _key(here) in self._own:
                return here
            place = here.size(), here.stride(), here.storage_offset()
            return _Outside(StorageWeakRef(here.untyped_storage()), here.dtype, *place)
        return value.clone() if isinstance(value, Tensor) else value


class EmulatedGraph:
    """A recording, to be replayed; takes the place of `winnow.cache.cuda_graph.CudaGraph`."""

    def __init__(self, work: Callable[[], Tensor], device: torch.device) -> None:
        assert device == GPU
        recording = Recording()
        with _recorded_by(recording):
            self.output = work()
        self.operations = recording.names
        self._redo = recording.redo

    def replay(self) -> None:
        """The recorded work, once more."""
        assert not _ACTIVE, "a replay within a recording"
        for each in self._redo:
            each()


@contextmanager
def graphed_gpu() -> Iterator[None]:
    """The GPU that stands in, with decode kernels of Triton's interpreter, and launches that can be recorded."""
    from triton.runtime.interpreter import InterpretedFunction

    from support.interpreter import patch_once
    from winnow.kernels.gpu import support

    patch_once()
    run = InterpretedFunction.run

    def run_here(kernel: Any, *args: Any, **kwargs: Any) -> Any:
        check_launch(args)
        if _ACTIVE:
            return _ACTIVE[-1].launch(run, kernel, args, kwargs)
        return run(kernel, *map(elsewhere._here, args), **kwargs)

    there = mock.patch.object(support, "supports", lambda tail: tail.keys.device == GPU)
    with gpu_stand_in(), there, mock.patch.object(InterpretedFunction, "run", run_here):
        yield


def refuse(what: str, *rest: Any) -> None:
    """Raises RuntimeError, as a device does while a graph is captured."""
    raise RuntimeError(f"operation not permitted when stream is capturing: {what}")


_ACTIVE: list[Recording] = []


@contextmanager
def _recorded_by(recording: Recording) -> Iterator[None]:
    _ACTIVE.append(recording)
    try:
        with (
            mock.patch.object(elsewhere, "_write", refuse),
            mock.patch.object(elsewhere, "there", recording.constant),
            # transformers asks, and then looks at no number of the device.
            mock.patch.object(torch.cuda, "is_current_stream_capturing", return_value=True),
            recording,
        ):
            yield
    finally:
        _ACTIVE.pop()


def _key(tensor: Tensor) -> int:
    key: int = tensor.untyped_storage()._cdata
    return key


def _is_of_host(value: Any) -> bool:
    return isinstance(value, Tensor) and not isinstance(value, Elsewhere) and value.dim() > 0


def _thawed(values: Any) -> Any:
    return mapped(lambda each: each.tensor() if isinstance(each, _Outside) else each, values)
