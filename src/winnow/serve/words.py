"""The text of an answer while its tokens come, up to a text that ends it."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

INCOMPLETE = "\N{REPLACEMENT CHARACTER}"
"""Stands for bytes that are no character yet."""


class Words:
    """Words of an answer, without the space around it; or of a text that goes on, as they are."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        stops: Sequence[str] = (),
        behind: Sequence[int] | None = None,
        special: bool = False,
    ) -> None:
        """stops: texts of which the first that is complete ends the answer, and is not part of it.

        behind: the last tokens of a text that goes on; None for an answer of its own. special: special tokens are told,
        too (see `mark`), and all space.
        """
        self.stopped = False
        """True once one of them came."""
        self._pieces = _Pieces(tokenizer, behind or (), special)
        self._stops = tuple(stops)
        self._trimmed = Trimmed() if behind is None and not special else None
        self._waiting = ""
        """Text that may be the beginning of one that ends the answer."""

    def add(self, token: int) -> str:
        """One more token; returns the text that is certain now."""
        return self._certain(self._pieces.add(token), end=False)

    def mark(self, token: int) -> str:
        """The text of a special token, in which no text ends the answer. To be told behind what `end` returns."""
        return self._pieces.add(token)

    def end(self) -> str:
        """No token comes any more, or a special one; returns what was held back."""
        return self._certain(self._pieces.rest(), end=True)

    def _certain(self, text: str, end: bool) -> str:
        if self.stopped:
            return ""
        self._waiting += text
        found = [(place + len(stop), place) for stop in self._stops if (place := self._waiting.find(stop)) >= 0]
        if found:
            self.stopped = True
            ready, self._waiting = self._waiting[: min(found)[1]], ""
        else:
            sure = len(self._waiting) if end else self._safe()
            ready, self._waiting = self._waiting[:sure], self._waiting[sure:]
        return ready if self._trimmed is None else self._trimmed.add(ready)

    def _safe(self) -> int:
        """Characters that belong to no text that may be about to end the answer."""
        for start in range(max(0, len(self._waiting) - max(map(len, self._stops), default=0)), len(self._waiting)):
            if any(stop.startswith(self._waiting[start:]) for stop in self._stops):
                return start
        return len(self._waiting)


class Trimmed:
    """Text that comes piece by piece, without the space around it."""

    def __init__(self) -> None:
        self._space = ""
        """Space that waits for a word behind it."""
        self._begun = False
        self._apart = False
        """True until more text comes behind something else."""

    def add(self, text: str) -> str:
        """Text without the space before the first word; space at its end waits."""
        if self._apart and text:
            self._apart = False
            if text[0].isspace():
                self._space = ""
        whole = self._space + text
        words = whole.rstrip()
        self._space = whole[len(words) :]
        if not self._begun:
            words = words.lstrip()
            self._begun = bool(words)
        return words

    def part(self) -> None:
        """Something else comes here. Of the space on both sides of it the second is kept, if there is one."""
        self._apart = True


class _Pieces:
    """Pieces of text, each cut out of a decoding that begins a piece earlier: some tokens mean more behind others.

    transformers' streamers begin anew after every line, which takes the space from the next line's beginning.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, before: Sequence[int], special: bool) -> None:
        self._tokenizer = tokenizer
        self._special = special
        self._tokens = list(before)
        self._told = len(self._tokens)
        """Tokens whose text is known."""

    def add(self, token: int) -> str:
        """The text of one more token, and of those that had none yet."""
        self._tokens.append(token)
        text = self._new()
        if text.endswith(INCOMPLETE):
            return ""
        if text:
            self._tokens = self._tokens[self._told :]
            self._told = len(self._tokens)
        return text

    def rest(self) -> str:
        """The text of tokens that had none yet, whatever comes behind them."""
        text = self._new()
        self._told = len(self._tokens)
        return text

    def _new(self) -> str:
        return self._decoded(self._tokens)[len(self._decoded(self._tokens[: self._told])) :]

    def _decoded(self, tokens: list[int]) -> str:
        return str(self._tokenizer.decode(tokens, skip_special_tokens=not self._special))
