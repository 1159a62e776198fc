"""Prompts that stay prefilled: as many in memory as there is room for, the others on disk, or read again."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from uuid import uuid4

import torch
from torch import Tensor

from winnow.cache.compressed import CompressedCache
from winnow.cache.context import Context, load_context
from winnow.errors import ContextError, ModelError
from winnow.models import available_memory

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SHARE = 2
"""Prompts take one half of the memory that is free, where nobody says how much."""


class PrefilledExample(NamedTuple):
    """An example's prompt in a full cache of one row."""

    cache: CompressedCache
    tokens: Tensor
    """[1, N] the prompt."""
    first: Tensor
    """[1] the first token of the answer."""


@dataclass(frozen=True)
class PromptMemory:
    """Room for prompts that stay prefilled."""

    limit: int | None = None
    """Bytes of every worker, besides the prompt in use; None for a share of what is free when the first one is read."""
    folder: str | None = None
    """For prompts that have no room; without one they are read again."""
    workers: int = 1
    """Workers that divide what is free on a machine."""

    def bytes(self, device: torch.device) -> int | None:
        """The limit on a device; None where there is none, and the system does not tell what is free."""
        if self.limit is not None:
            return self.limit
        free = available_memory(device)
        return None if free is None else free // SHARE // self.workers


class PrefilledExamples:
    """Prefilled prompts by example, each read when it is first asked for.

    What has no room is written to disk once and mapped when it is needed again, unless that takes longer than reading
    the prompt again: both are timed. Of those in memory the last one used goes first, because examples take turns.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        read: Callable[[int], PrefilledExample],
        memory: PromptMemory,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._read = read
        self._clock = clock
        self._limit = memory.bytes(model.device)
        self._shelf = None if memory.folder is None else _Shelf(model, Path(memory.folder))
        # In the order of their last use.
        self._held: dict[int, PrefilledExample] = {}
        self._sizes: dict[int, int] = {}
        self._seconds: dict[int, float] = {}

    def __getitem__(self, example: int) -> PrefilledExample:
        found = self._held.pop(example, None) or self._fetch(example)
        self._sizes.setdefault(example, found.cache.stats().held_bytes)
        self._make_room(self._sizes[example])
        self._held[example] = found
        return found

    def _make_room(self, size: int) -> None:
        while self._held and self._limit is not None and self._held_bytes() + size > self._limit:
            example, gone = self._held.popitem()
            if self._shelf is not None and not self._shelf.put(example, gone):
                self._shelf = None

    def _held_bytes(self) -> int:
        return sum(self._sizes[example] for example in self._held)

    def _fetch(self, example: int) -> PrefilledExample:
        start = self._clock()
        found = None if self._shelf is None else self._shelf.get(example)
        if found is None:
            found = self._read(example)
            self._seconds[example] = self._clock() - start
        elif self._clock() - start > self._seconds[example]:
            self._shelf = None
        return found


class _Shelf:
    """Prompts as saved contexts, in a folder that others share."""

    def __init__(self, model: PreTrainedModel, folder: Path) -> None:
        self._model = model
        self._folder = folder
        self._mark = uuid4().hex[:12]
        self._first: dict[int, Tensor] = {}
        self._timed = False

    def put(self, example: int, prefilled: PrefilledExample) -> bool:
        """Writes a prompt that is not there yet. False where it cannot be written, for lack of space for example."""
        if example in self._first:
            return True
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            Context(prefilled.cache, prefilled.tokens).save(self._path(example))
        except (OSError, ContextError, ModelError):
            return False
        self._first[example] = prefilled.first
        return True

    def get(self, example: int) -> PrefilledExample | None:
        """A prompt that was written. The first one is read as a whole, so that its time is that of the disk."""
        if example not in self._first:
            return None
        try:
            context = load_context(self._path(example), self._model, verify=not self._timed)
        except (OSError, ContextError):
            return None
        self._timed = True
        return PrefilledExample(context.cache(), context.input_ids, self._first[example])

    def _path(self, example: int) -> Path:
        return self._folder / f"{self._mark}-{example}.safetensors"
