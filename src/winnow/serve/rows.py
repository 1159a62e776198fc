"""Answers that are decoded side by side, as rows of one cache."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import PreTrainedModel

from winnow.cache.compressed import CompressedCache
from winnow.evaluate.answer_reader import AnswerReader
from winnow.evaluate.lookup import PromptLookup
from winnow.evaluate.sampling import Choice
from winnow.models.cache_argument import with_cache
from winnow.models.devices import input_device
from winnow.models.pieces import rotates_by_length
from winnow.serve.asked import Asked, Reason, Said
from winnow.serve.grammars import Guide
from winnow.serve.words import Words


@dataclass(eq=False)
class Row:
    """An answer, as far as it was said."""

    asked: Asked
    words: Words
    choice: Choice
    most: int
    """Tokens of the answer."""
    tokens: list[int]
    """Those of the prompt, then those that were said."""
    prompt_tokens: int
    logits: Tensor
    """[V] after them."""
    waited_seconds: float
    read_seconds: float
    began: float = field(default_factory=time.monotonic)
    text: str = ""
    """The text that was told."""
    reason: Reason | None = None
    """The reason for which the answer is whole."""
    number: int = 0
    """Number of the answer among those to one prompt."""
    guide: Guide | None = None
    """The way through the grammar of the answer; None for any text."""

    @property
    def said(self) -> list[int]:
        """Tokens of the answer."""
        return self.tokens[self.prompt_tokens :]

    @property
    def over(self) -> bool:
        """True if nothing is to come."""
        return self.reason is not None or self.asked.canceled

    def say(self, stops: frozenset[int]) -> None:
        """Chooses the next token, and tells of the words that it completes."""
        token, form = self.choice(self.logits), self.asked.prompt.form
        ends = token in stops
        if self.guide is not None and not ends:
            self.guide.take(token)
        if not ends:
            self.tokens.append(token)
        if form is not None and (ends or token in form.special):
            self._mark(token)
        elif not ends:
            self._tell(self.words.add(token))
        if ends or self.words.stopped or (self.guide is not None and self.guide.complete):
            self.reason = "stop"
        elif len(self.said) == self.most:
            self.reason = "length"
        if self.reason is not None:
            self._tell(self.words.end())

    @property
    def cut(self) -> bool:
        """True if a text or the length ended the answer, and not the model."""
        return self.reason == "length" or self.words.stopped

    def _mark(self, token: int) -> None:
        """Tells of a token that may mark a call. Texts that end the answer are among words alone."""
        self._tell(self.words.end())
        if not self.words.stopped:
            self._tell(self.words.mark(token), special=True)

    def _tell(self, text: str, special: bool = False) -> None:
        if text:
            self.text += text
            self.asked.tell(Said(text, self.number, special))


def joins(cache: CompressedCache) -> bool:
    """True if a cache can be of several rows, and each of them is what it would be alone."""
    return cache.may_be_joined() and not rotates_by_length(cache.config)


class Batch:
    """Rows of one cache; all of them say a token at a time. Each says what it would say alone."""

    def __init__(self, rows: Sequence[Row], cache: CompressedCache, candidates: int = 0) -> None:
        """cache: of one row, with which all of them begin. candidates: the most at a time for a row that is alone."""
        self.rows = list(rows)
        self.cache = cache if len(rows) == 1 else CompressedCache.joined([cache] * len(rows))
        self._candidates = candidates
        self._alone: AnswerReader | None = None

    def takes(self, cache: CompressedCache) -> bool:
        """True if a cache of one row can become a row of this one."""
        return joins(cache) and joins(self.cache) and cache.compression.folding == self.cache.compression.folding

    def add(self, rows: Sequence[Row], cache: CompressedCache) -> None:
        """More rows, which begin with a cache of one row."""
        self._settle()
        self.cache = CompressedCache.joined([self.cache, *[cache] * len(rows)])
        self.rows += rows

    def cache_of(self, row: Row) -> CompressedCache:
        """The cache of one row, which the others do not change."""
        self._settle()
        return self.cache if len(self.rows) == 1 else self.cache.alone(self.rows.index(row))

    def leave(self, rows: Sequence[Row]) -> None:
        """Rows that are over go. The last one's cache is given away as it is."""
        if rows:
            self._settle()
        kept = [place for place, row in enumerate(self.rows) if row not in rows]
        if rows and len(kept) == 1:
            # A conversation is gone on with from the length that its cache tells, which is that of the longest row yet.
            self.cache = self.cache.alone(kept[0])
        elif rows and kept:
            self.cache.reorder_cache(torch.tensor(kept, dtype=torch.int64, device="cpu"))
        self.rows = [self.rows[place] for place in kept]

    @torch.no_grad()
    def step(self, model: PreTrainedModel) -> None:
        """The model reads what every row said last."""
        if len(self.rows) == 1:
            self._step_alone(model, self.rows[0])
            return
        device = input_device(model)
        tokens = torch.tensor([row.tokens[-1:] for row in self.rows], device=device)
        positions = torch.tensor([[len(row.tokens) - 1] for row in self.rows], device=device)
        output = model(input_ids=tokens, position_ids=positions, **with_cache(model, self.cache))
        for row, logits in zip(self.rows, output.logits[:, -1], strict=True):
            row.logits = logits

    def _step_alone(self, model: PreTrainedModel, row: Row) -> None:
        """The same of a row that is alone, whose next tokens are looked up in what it holds."""
        if self._alone is None:
            lookup = PromptLookup(row.tokens[:-1], self._candidates) if self._candidates else None
            self._alone = AnswerReader(model, self.cache, lookup, placed=True)
        row.logits = self._alone.read(row.tokens[-1], room=row.most - len(row.said) - 1)

    def _settle(self) -> None:
        """Leaves in the cache what rows said, and nothing that was only tried."""
        if self._alone is not None:
            self._alone.settle()
            self._alone = None
