"""A model that reads an answer as it is written, and tries what may come next."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import Cache, PreTrainedModel

from winnow.cache.compressed import CompressedCache
from winnow.cache.trial import Trial
from winnow.errors import CacheError
from winnow.evaluate.lookup import ALIKE, SURELY, PromptLookup
from winnow.kernels.linear import multiplies_several
from winnow.models.cache_argument import with_cache
from winnow.models.devices import input_device
from winnow.models.pieces import rotates_by_length
from winnow.models.positions import positions_from


def fed(model: PreTrainedModel, tokens: Tensor, cache: Cache, placed: bool, named: dict[str, Any]) -> Tensor:
    """The logits [n, V] of tokens [1, n], or of those that `named` asks for. placed: tell the model their positions."""
    tokens = tokens.to(input_device(model))
    if placed:
        named = named | {"position_ids": positions_from(cache.get_seq_length(), tokens)}
    output = model(input_ids=tokens, **with_cache(model, cache), **named)
    logits: Tensor = output.logits[0]
    return logits


class AnswerReader:
    """A model that reads the tokens of one answer, and with each, where it can, some that may follow it."""

    def __init__(
        self, model: PreTrainedModel, cache: CompressedCache, lookup: PromptLookup | None, *, placed: bool
    ) -> None:
        """cache: of one row. lookup: of the tokens that it holds; None for no candidates. placed: tell positions."""
        self._model = model
        self._cache = cache
        self._lookup = lookup if lookup is not None and looks_ahead(model) else None
        self._alike = ALIKE if multiplies_several() else SURELY
        self._trial = Trial(cache)
        self._placed = placed
        self._length = cache.get_seq_length()
        self._first = True
        self._checked: list[tuple[int, Tensor]] = []
        self._tried: list[int] = []

    def read(self, token: int, room: int) -> Tensor:
        """The logits [V] after a token of the answer, which follows those before it.

        room: candidates that may be read with it, at most.
        """
        known = self._next(token)
        if known is None:
            self.settle()
            known = self._ahead(token, room)
        self._length += 1
        self._first = False
        return known

    def settle(self) -> None:
        """Takes back the candidates that are not of the answer, so far.

        Where that is interrupted, another call does what is left of it.
        """
        if self._lookup is None or not self._tried:
            return
        try:
            wrong = self._cache.get_seq_length() - self._length
        except CacheError:
            wrong = -1  # the pass was broken off, and whoever takes that back takes back all of it
        if wrong >= 0:
            given = len(self._tried) - 1
            self._lookup.learn(given, max(0, given - wrong))
            self._take_back(wrong)
        self._checked, self._tried = [], []

    @torch.no_grad()
    def _take_back(self, wrong: int) -> None:
        """Takes back the last `wrong` tokens of those that were tried, and reads the others again where it has to."""
        if again := self._trial.end(len(self._tried), wrong):
            self._tried = self._tried[:again]
            self._pass(self._tried)
            self._trial.end(again, 0)

    def _ahead(self, token: int, room: int) -> Tensor:
        """The logits [V] after a token, which is read with candidates where there are some."""
        # Graphs begin with a token behind the prompt.
        if self._lookup is None or self._first:
            found = []
        else:
            alike = SURELY if self._trial.reads_again else self._alike
            found = self._lookup.candidates(min(room, self._trial.room() - 1), alike)
        if not found:
            tokens = torch.tensor([[token]], device="cpu")
            return fed(self._model, tokens, self._cache, self._placed, {})[0]
        self._tried = [token, *found]  # before the cache holds them, as an interrupt may come at any time
        known, *others = self._pass(self._tried)
        self._checked = list(zip(found, others, strict=True))
        return known

    def _pass(self, tokens: list[int]) -> Tensor:
        """The logits [n, V] after tokens that are on trial."""
        with self._trial.passing():
            return fed(self._model, torch.tensor([tokens], device="cpu"), self._cache, self._placed, {})

    def _next(self, token: int) -> Tensor | None:
        """The logits after a token if it was read as a candidate."""
        if self._lookup is None:
            return None
        self._lookup.say(token)
        if not self._checked or self._checked[0][0] != token:
            return None
        return self._checked.pop(0)[1]


def looks_ahead(model: PreTrainedModel) -> bool:
    """True for models that read a few tokens in little more time than one, as they would read them one by one.

    On a GPU a single token is a replay, which takes less time than Python to ask for a pass of several.
    """
    return model.device.type == "cpu" and not rotates_by_length(model.config)
