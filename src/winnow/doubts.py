"""Doubts about what a device computed: settled together, since the host waits for the device to look at any of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import NamedTuple

import torch
from torch import Tensor


class _Doubt(NamedTuple):
    wrong: Tensor
    error: Exception


class Doubts:
    """Things that would be errors, if they are so; the device may still be computing whether they are."""

    def __init__(self) -> None:
        self._open: list[_Doubt] = []

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Within, `doubted` leaves what lies on a device to `settle`. A failure, which may come of it, settles it."""
        token = _COLLECTING.set(self)
        try:
            yield
        except Exception:
            self.settle()
            raise
        finally:
            _COLLECTING.reset(token)

    def add(self, wrong: Tensor, error: Exception) -> None:
        """A scalar bool, and what it means if it is true."""
        self._open.append(_Doubt(wrong, error))

    def settle(self) -> None:
        """Raises the first error that is one. The host waits once for each device."""
        doubts, self._open = self._open, []
        found: dict[torch.device, Iterator[bool]] = {}
        for device in dict.fromkeys(each.wrong.device for each in doubts):
            found[device] = iter(torch.stack([each.wrong for each in doubts if each.wrong.device == device]).tolist())
        for each in doubts:
            if next(found[each.wrong.device]):
                raise each.error


_COLLECTING: ContextVar[Doubts | None] = ContextVar("collecting", default=None)


def doubted(wrong: Tensor, error: Exception) -> None:
    """Raises an error if a scalar bool is true: now, or with what is being collected where it lies on a device."""
    collecting = _COLLECTING.get()
    if wrong.device.type != "cpu" and collecting is not None:
        collecting.add(wrong, error)
    elif bool(wrong):
        raise error


@contextmanager
def settled_together() -> Iterator[None]:
    """Doubts within are settled at its end, or with those that are being collected already."""
    outer, own = _COLLECTING.get(), Doubts()
    with nullcontext() if outer else own.collecting():
        yield
    own.settle()
