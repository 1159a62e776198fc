"""A conversation in one cache: every turn gives the model what is new, and nothing twice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.generation.streamers import BaseStreamer

from winnow.cache.compressed import CompressedCache
from winnow.errors import CacheError, Ended, PromptError
from winnow.evaluate.answering import stream
from winnow.evaluate.decoding import decode, prefill, stop_tokens
from winnow.evaluate.lookup import PromptLookup
from winnow.evaluate.sampling import Choice
from winnow.evaluate.turns import Subject, Turn, answered, conversation_text, templated
from winnow.models.kinds import starts_anew


class Beginning(NamedTuple):
    """A cache to begin with, as often as it takes."""

    tokens: Tensor
    """[1, M] those that it holds; M is 0 for an empty one."""
    cache: Callable[[], CompressedCache]


class Prompt(NamedTuple):
    """A question as tokens behind all that was said."""

    question: str
    text: str
    tokens: list[int]
    """Those of the whole conversation."""
    cache: CompressedCache
    """Holds the first of them."""

    @property
    def unread(self) -> list[int]:
        """The tokens that the model has to read."""
        return self.tokens[self.cache.get_seq_length() :]


class Reply(NamedTuple):
    """An answer, whole or as far as it was said."""

    text: str
    tokens: int
    interrupted: bool


class Conversation:
    """Questions and answers about a subject, in one cache that every turn continues.

    A chat template may write earlier turns in another way once they are history (without what a model thought, for
    example). Then the cache is begun again, and the turns are read anew behind what it begins with.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        subject: Subject,
        beginning: Beginning,
        turns: Sequence[Turn] = (),
    ) -> None:
        """turns: said before, to be read with the first question."""
        self.subject = subject
        self.turns = list(turns)
        self._model = model
        self._tokenizer = tokenizer
        self._beginning = beginning
        self._text = ""
        self._tokens: list[int] = []
        self._cache: CompressedCache | None = None

    @property
    def cache(self) -> CompressedCache:
        """The cache as it is, with all turns in it, or one to begin with."""
        return self._beginning.cache() if self._cache is None else self._cache

    def forget(self) -> None:
        """Lets go of all turns."""
        self.turns = []
        self._cache = None

    def prompt(self, question: str) -> Prompt:
        """The tokens of a question in its place; nothing is read yet.

        Raises:
            PromptError: the chat template refuses it, or does not begin as the cache does.
        """
        text = conversation_text(self._tokenizer, self.subject, self.turns, question)
        cache = None if starts_anew(self._model.config) else self._cache
        if cache is not None and text.startswith(self._text):
            new = tokens_behind(self._tokenizer, self._text, text)
            if new:
                return Prompt(question, text, self._tokens + new, cache)
        return self._from_the_beginning(question, text)

    def read(self, prompt: Prompt) -> Tensor:
        """The logits [V] after a question. Where that is interrupted the next one begins the cache again."""
        self._cache = None
        logits = prefill(self._model, torch.tensor([prompt.unread], device="cpu"), prompt.cache)
        self._cache = prompt.cache
        return logits

    def answer(
        self,
        prompt: Prompt,
        logits: Tensor,
        max_new_tokens: int,
        choice: Choice,
        streamer: BaseStreamer | None = None,
        candidates: int = 0,
    ) -> Reply:
        """Answers a question that was read. An interrupt (Ctrl-C) ends the answer, and what was said counts.

        streamer: gets the tokens [1] as they come, and their end. candidates: the most at a time that are looked up in
        the conversation, and checked in one pass.
        """
        # Until all is well it cannot be gone on with.
        self._cache = None
        said: list[int] = []
        interrupted = False
        stops, lookup = stop_tokens(self._model), PromptLookup(prompt.tokens, candidates) if candidates else None
        try:
            stream(decode(self._model, prompt.cache, logits, max_new_tokens, stops, choice, lookup), said, streamer)
        except Ended:
            raise
        except KeyboardInterrupt:
            interrupted = True
        self._cache = _mended(prompt.cache) if interrupted else prompt.cache
        text = str(self._tokenizer.decode(said, skip_special_tokens=True))
        self.turns.append(Turn(prompt.question, text))
        self._text, self._tokens = (
            answered(self._tokenizer, prompt.text, text, self.subject.style),
            prompt.tokens + said,
        )
        return Reply(text.strip(), len(said), interrupted)

    def _from_the_beginning(self, question: str, text: str) -> Prompt:
        tokens = _encoded(self._tokenizer, text, special=not templated(self._tokenizer, self.subject.style))
        start = self._beginning.tokens[0].tolist()
        if tokens[: len(start)] != start or len(tokens) == len(start):
            raise PromptError(
                "This question's prompt does not begin with the document's tokens: the question's first characters "
                "form a token with the end of the document, or the chat template changes the text before it. Begin the "
                "question with a word, or forget the earlier turns."
            )
        return Prompt(question, text, tokens, self._beginning.cache())


def tokens_behind(tokenizer: PreTrainedTokenizerBase, known: str, text: str) -> list[int]:
    """The tokens of a text behind the beginning of it that is known; none where they cannot be told apart.

    Tokenizers of the SentencePiece kind put a blank before every text. Behind another one there is none, so what comes
    is encoded with something before it.
    """
    rest = text[len(known) :]
    word = _encoded(tokenizer, "a")
    if _encoded(tokenizer, "a a") != word * 2:
        return _encoded(tokenizer, rest)
    for before in (known[-1:], "a", "."):
        tokens, whole = _encoded(tokenizer, before), _encoded(tokenizer, before + rest)
        if tokens and whole[: len(tokens)] == tokens:
            return whole[len(tokens) :]
    return []


def _encoded(tokenizer: PreTrainedTokenizerBase, text: str, special: bool = False) -> list[int]:
    ids: list[int] = tokenizer(text, add_special_tokens=special).input_ids
    return ids


def _mended(cache: CompressedCache) -> CompressedCache | None:
    """A cache without the step that was interrupted; None where that cannot be taken back."""
    try:
        cache.take_back_unfinished()
        cache.get_seq_length()
    except CacheError:
        return None
    return cache
