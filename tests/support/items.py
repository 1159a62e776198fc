"""A game that workers of any process can play, and items of it."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from winnow.estimate.cokv.plan import Sampled
from winnow.estimate.cokv.sampling import PlayerSplits
from winnow.estimate.executors.base import Item, Worker
from winnow.estimate.executors.local import LocalExecutor

PLAN = Sampled(PlayerSplits(8, (2, 4), 0), pairs=8)
ITEMS = [Item(batch, example) for example in range(3) for batch in range(4)]
FATAL, BROKEN, UNSENDABLE = Item(99, 0), Item(98, 0), Item(97, 0)


class TwoNames(Exception):
    """An error that pickle writes and cannot read: it is made from more than its words."""

    def __init__(self, one: str, other: str) -> None:
        super().__init__(f"{one} and {other}")


def play(item: Item) -> list[float]:
    """An additive game of shares, different for every example."""
    weights = (torch.arange(8, dtype=torch.float64) / 7 + item.example) / 64
    values: list[float] = (PLAN.coalitions(item.batch).double() @ weights).tolist()
    return values


@dataclass(frozen=True)
class Playing:
    """The game in a worker of any process; `folder` remembers which items killed their worker already."""

    folder: Path
    deadly: Item | None = None
    seconds: float = 0.0

    def prepare(self) -> Worker:
        (self.folder / f"worker-{os.getpid()}").touch()
        return self.play

    def play(self, item: Item) -> list[float]:
        if item == BROKEN:
            raise ValueError("no such batch")
        if item == UNSENDABLE:
            raise TwoNames("this", "that")
        died = self.folder / "died"
        if item == FATAL or (item == self.deadly and not died.exists()):
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(self.seconds)
        return play(item)


@dataclass(frozen=True)
class Unprepared:
    """A worker that cannot be made."""

    def prepare(self) -> Worker:
        raise FileNotFoundError("no such model")


def here(folder: Path) -> dict[Item, list[float]]:
    return dict(LocalExecutor(Playing(folder).prepare()).run(ITEMS))
