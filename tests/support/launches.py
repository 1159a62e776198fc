"""Launches of Triton's kernels counted instead of made, and what else a step asks of torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

KERNELS = ("prepare_queries", "attend_chunks", "join_chunks")
WAITING = {"_local_scalar_dense", "nonzero", "masked_select", "unique_consecutive", "_unique2", "equal", "is_nonzero"}
"""Operators after which the host knows what the device computed."""


class _Kernel:
    def __init__(self, name: str, launches: list[str]) -> None:
        self.name, self.launches = name, launches

    def __getitem__(self, grid: Any) -> Any:
        assert all(isinstance(each, int) and each > 0 for each in grid)
        return lambda *args, **kwargs: self.launches.append(self.name)


@contextmanager
def counted_launches() -> Iterator[list[str]]:
    """The names of the kernels that plans launch; none runs."""
    from winnow.kernels.gpu import plan

    launches: list[str] = []
    stand_ins = {name: _Kernel(name, launches) for name in KERNELS}
    with mock.patch.multiple(plan, **stand_ins):
        yield launches


class Operators(TorchDispatchMode):
    """Names of all operators that torch is asked for, and which of them wait for the device or send to another."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.waiting: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.overloadpacket.__name__
        self.names.append(name)
        masked = name == "index" and any(
            each is not None and each.dtype.is_floating_point is False and str(each.dtype) == "torch.bool"
            for each in args[1]
        )
        moved = name in ("_to_copy", "copy_") and _devices(args, kwargs or {}) > 1
        if name in WAITING or masked or moved:
            self.waiting.append(name)
        return function(*args, **(kwargs or {}))


def _devices(args: Any, kwargs: Any) -> int:
    found = {each.device.type for each in args if isinstance(each, Tensor)}
    if kwargs.get("device") is not None:
        found.add(kwargs["device"].type)
    return len(found)
