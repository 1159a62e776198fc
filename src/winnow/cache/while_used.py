"""Changes to a model that last as long as anybody uses them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import Concatenate, Generic, ParamSpec
from weakref import WeakKeyDictionary

from transformers import PreTrainedModel

P = ParamSpec("P")
Undo = Callable[[], None]


class WhileUsed(Generic[P]):
    """A change to models: of several threads that use one, the first makes it and the last has it undone."""

    def __init__(self, change: Callable[Concatenate[PreTrainedModel, P], Undo | None]) -> None:
        """change: makes it and returns how it is undone; None where there is nothing to change."""
        self._change = change
        self._uses: WeakKeyDictionary[PreTrainedModel, _Use] = WeakKeyDictionary()
        self._lock = Lock()

    @contextmanager
    def __call__(self, model: PreTrainedModel, *args: P.args, **kwargs: P.kwargs) -> Iterator[None]:
        """The model is changed within."""
        with self._lock:
            use = self._uses.get(model)
            if use is None and (undo := self._change(model, *args, **kwargs)) is not None:
                use = self._uses[model] = _Use(undo)
            if use is not None:
                use.users += 1
        try:
            yield
        finally:
            if use is not None:
                self._leave(model, use)

    def _leave(self, model: PreTrainedModel, use: _Use) -> None:
        with self._lock:
            use.users -= 1
            if not use.users:
                del self._uses[model]
                use.undo()


@dataclass
class _Use:
    """A change that was made, and how many use it."""

    undo: Undo
    users: int = 0
