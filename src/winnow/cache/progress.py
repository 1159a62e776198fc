"""Forward passes over a cache, part by part, so that one that was not finished is noticed.

transformers tells a cache of single layers only: neither where a forward pass ends nor that it failed. But a pass that
ends reaches every part of a cache once, so a part that is reached again before all others were, or a new pass that
begins then, shows that the last one did not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any, NamedTuple

from winnow.errors import CacheError

AGAIN = "start again from the prompt with a new CompressedCache"


class Part(NamedTuple):
    """A state that every forward pass changes once."""

    kind: str
    """"full", "sliding" or "linear"."""
    layer: int
    """Among the compressed ones for "full", else of the model."""


class Progress:
    """Passes that have reached each part of a cache, and what parts were before the last one."""

    def __init__(self, parts: Iterable[Part] = ()) -> None:
        """parts: what every pass reaches; others join when they are reached first."""
        self._passes = dict.fromkeys(parts, 0)
        self._finished = 0  # passes that reached all parts
        self._reached = 0  # parts that the pass that goes on has reached
        self._latest: Part | None = None  # the part that was reached last in the pass that goes on
        self._inside: Part | None = None  # reached, its work is not done
        self._torn = False  # rows or lengths were changed in some parts only
        self.before: dict[Part, Any] = {}
        """Parts that can be put back to what they were before the pass that goes on."""

    def add(self, part: Part) -> None:
        """A part that every pass reaches."""
        self._passes[part] = 0

    def enter(self, part: Part) -> None:
        """A pass reaches a part, until `leave`. Raises CacheError where the pass before this one did not end."""
        passes, finished = self._passes, self._finished
        if self._inside is not None or self._torn or passes.get(part, finished) != finished:
            self._check_reachable(part)
        self._inside = part  # first, so that an interrupt in between finds no pass that looks finished
        # As `_reach`, without the call: this is done for every layer and token.
        self._reached += 1
        passes[part] = finished + 1
        self._latest = part

    def touch(self, part: Part) -> None:
        """A pass reaches a part that it uses several times in a row, of which none is known to be the last.

        Raises CacheError where the pass before this one did not end.
        """
        if part != self._latest:
            self._check_reachable(part)
            self._reach(part)

    def _check_reachable(self, part: Part) -> None:
        again = self._passes.get(part, self._finished) != self._finished
        if self._inside is not None and self._inside.kind == "full" and not again:
            raise self.bypassed()
        if again or self._inside is not None or self._torn:
            self.check()

    def _reach(self, part: Part) -> None:
        self._reached += 1  # first: an interrupt in between must not find that nothing was reached
        self._passes[part] = self._finished + 1
        self._latest = part

    def leave(self) -> None:
        """The part that was entered last is through."""
        self._inside = None
        if self._reached == len(self._passes):
            self.is_whole()  # what parts were before need not be kept any longer

    def withdraw(self, part: Part) -> None:
        """A part is what it was before the pass."""
        reached = self._passes[part] - self._finished
        self._passes[part], self._latest = self._finished, None
        self._reached -= reached  # last: an interrupt in between must not find that nothing is reached any more
        self.before.pop(part, None)
        self._inside = None

    def withdraw_all(self) -> None:
        """All parts are what they were before the pass."""
        for part in self.reached():
            self.withdraw(part)
        self._inside = None

    def is_whole(self) -> bool:
        """True if no pass is going on: the last one reached every part and left it."""
        if not self._reached and self._inside is None and not self._torn:
            return True
        if self._inside is not None or self._torn or len(set(self._passes.values())) > 1:
            return False
        reached = next(iter(self._passes.values()), 0)
        if reached > self._finished:
            self._finished = reached
            self.before.clear()
        self._reached, self._latest = 0, None
        return True

    def check(self) -> None:
        """Raises CacheError unless the last pass, and the last change of rows or length, reached all parts."""
        if self.is_whole():
            return
        if self._torn:
            raise CacheError(
                f"a change of this cache's rows or tokens failed, and only some of its layers have it; {AGAIN}."
            )
        raise CacheError(
            "the last forward pass over this cache was not finished (an error, an interrupt), so some of its layers "
            f"hold that pass's tokens and others do not; {self._remedy()}."
        )

    def bypassed(self) -> CacheError:
        """The error for a part that was reached and never worked on."""
        return CacheError(
            "keys and values given to this cache never reached winnow's attention function, so the tokens are lost. "
            'Call model.set_attn_implementation("winnow") and do not change it while the cache is in use; if it is '
            "set, this model's attention bypasses transformers' attention interface and is not supported. After an "
            f"error or an interrupt {self._remedy()}."
        )

    def reached(self) -> list[Part]:
        """Parts that the unfinished pass has reached."""
        return [part for part, passes in self._passes.items() if passes > self._finished]

    def check_reversible(self) -> None:
        """Raises CacheError where a part that was reached cannot be put back."""
        if self._torn or not set(self.reached()) <= set(self.before):
            raise CacheError(f"the state of this cache before the unfinished forward pass is gone; {AGAIN}.")

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Within, rows or lengths of all parts change; if that fails, only some have."""
        self.check()
        self._torn = True
        yield
        self._torn = False

    def reset(self) -> None:
        """All parts are empty."""
        self._passes = dict.fromkeys(self._passes, 0)
        self._finished, self._reached, self._latest, self._inside, self._torn = 0, 0, None, None, False
        self.before.clear()

    def __deepcopy__(self, memo: dict[int, Any]) -> Progress:
        twin = Progress()
        twin.__dict__.update(self.__dict__, _passes=dict(self._passes), before=deepcopy(self.before, memo))
        return twin

    def _remedy(self) -> str:
        if set(self.reached()) <= set(self.before):
            return f"call cache.take_back_unfinished() and repeat that step, or {AGAIN}"
        return AGAIN
