"""One model that answers many, in a thread of its own: prompts are read one by one, answers decoded side by side."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Condition, Thread

from torch import Tensor
from transformers import PreTrainedModel

from winnow.cache.compressed import CompressedCache
from winnow.cache.while_graphed import cuda_graphs
from winnow.errors import WinnowError, is_out_of_memory
from winnow.evaluate.decoding import stop_tokens
from winnow.models import ModelSource, answer_room
from winnow.serve.asked import Asked, Begun, Costs, Failed, Finished
from winnow.serve.beginnings import Prompt
from winnow.serve.held import Held, HeldConversations
from winnow.serve.reading import Reading
from winnow.serve.refusals import Refused
from winnow.serve.rows import Batch, Row
from winnow.serve.words import Words

_log = logging.getLogger(__name__)
_BEHIND = 8
"""Tokens of a text that its continuation is decoded with: some tell whether a space is between them."""


@dataclass(frozen=True)
class Limits:
    """The most that an engine does at a time."""

    rows: int = 8
    """Answers side by side."""
    waiting: int = 64
    """Requests that wait for their turn."""
    conversations: int = 16
    """Conversations that are held to be gone on with."""
    held_bytes: int | None = None
    """Bytes of those; None for any number."""
    piece: int = 512
    """Tokens of a prompt that are read between two tokens of others' answers."""


class Engine:
    """The thread in which a model works. Requests come in and events go out from any other thread."""

    def __init__(self, source: ModelSource, model: PreTrainedModel, limits: Limits) -> None:
        self.limits = limits
        self._source = source
        self._model = model
        self._stops = stop_tokens(model)
        self._held = HeldConversations(limits.conversations, limits.held_bytes)
        self._waiting: deque[tuple[float, Asked]] = deque()
        self._reading: Reading | None = None
        self._batches: list[Batch] = []
        self._closed = False
        self._changed = Condition()
        self._thread = Thread(target=self._work, name="winnow-engine", daemon=True)
        self._thread.start()

    def ask(self, asked: Asked) -> None:
        """Takes a request, whose events are told from now on. Raises Refused where too many wait."""
        with self._changed:
            if self._closed:
                raise Refused("the server is about to stop.", status=503)
            if len(self._waiting) >= self.limits.waiting:
                raise Refused(f"{len(self._waiting)} requests are waiting already; try again later.", status=503)
            self._waiting.append((time.monotonic(), asked))
            self._changed.notify()

    def cancel(self, asked: Asked) -> None:
        """Nobody waits for an answer any more; it ends with its next token or layer, or is not begun."""
        asked.canceled = True
        with self._changed:
            self._waiting = deque(each for each in self._waiting if each[1] is not asked)

    def close(self, seconds: float = 5.0) -> bool:
        """Refuses all that is not finished, and ends the thread; False if it did not end in so many seconds."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def counts(self) -> dict[str, int]:
        """Numbers of what is under way, as they are at this moment."""
        return {
            "waiting": len(self._waiting),
            "reading": int(self._reading is not None),
            "answering": sum(len(batch.rows) for batch in self._batches),
            "conversations_held": len(self._held),
        }

    # --- in the thread -------------------------------------------------------------------------------------

    def _work(self) -> None:
        with cuda_graphs(self._model):
            while self._has_work():
                self._read()
                for batch in self._batches:
                    self._answer(batch)
                self._batches = [batch for batch in self._batches if batch.rows]
        self._refuse_all()

    def _has_work(self) -> bool:
        """Waits until there is something to do; False if the engine is closed."""
        with self._changed:
            while not (self._closed or self._waiting or self._reading or self._batches):
                self._changed.wait()
            return not self._closed

    def _refuse_all(self) -> None:
        reading = [] if self._reading is None else [self._reading.asked]
        answering = [row.asked for batch in self._batches for row in batch.rows]
        for asked in (*(each for _, each in self._waiting), *reading, *answering):
            asked.tell(Failed(Refused("the server stops.", status=503)))

    def _read(self) -> None:
        """Goes on with a prompt, or begins with the one that waits for longest, if there is room for its answer."""
        if self._reading is None and self.counts()["answering"] < self.limits.rows:
            with self._changed:
                since, asked = self._waiting.popleft() if self._waiting else (0.0, None)
            if asked is not None:
                with self._told_of_failure([asked]):
                    self._reading = self._begun(asked, time.monotonic() - since)
        reading = self._reading
        if reading is not None and not reading.asked.canceled:
            with self._told_of_failure([reading.asked]):
                piece = self.limits.piece if self._batches else None
                logits = reading.go_on(self._model, piece, lambda: self._check_wanted(reading.asked))
                if logits is None:
                    return
                self._place(reading, logits)
        self._reading = None

    def _check_wanted(self, asked: Asked) -> None:
        """Raises Refused if an answer is not waited for any more."""
        if asked.canceled or self._closed:
            raise Refused("the server stops.", status=503)

    def _begun(self, asked: Asked, waited: float) -> Reading:
        """A prompt as tokens, behind the longest conversation that it continues. Raises Refused where that fails."""
        beginning, prompt = asked.beginning, asked.prompt
        held = self._held.longest(beginning.name, prompt.text)
        new = [] if held is None else self._behind(held, prompt)
        if held is not None and new:
            tokens, cache = held.tokens + new, held.cache
        else:
            tokens = self._encoded(prompt.text, special=not prompt.templated)
            if not tokens:
                raise Refused(f"{prompt.field} has no tokens: say something.", prompt.field)
            if not beginning.begins(tokens):
                raise Refused(
                    f"the question runs together with the end of the document of {beginning.name}; begin it with a "
                    "word.",
                    prompt.field,
                )
            cache = beginning.cache(len(tokens))
        most = self._source.context
        if most is not None and len(tokens) >= most:
            raise Refused(
                f"the prompt has {len(tokens):,} tokens and needs room for an answer; the model reads {most:,}.",
                prompt.field,
                code="context_length_exceeded",
            )
        return Reading(asked, tokens, cache, waited)

    def _behind(self, held: Held, prompt: Prompt) -> list[int]:
        """The tokens of a prompt behind a conversation; none where it is to be read anew."""
        if prompt.style is not None:
            return self._encoded(prompt.text[len(held.text) :], special=False)
        # Nothing marks the end of an answer in a text: its last word may go on, and be another token then.
        whole, known = self._encoded(prompt.text, special=True), len(held.tokens)
        return whole[known:] if whole[:known] == held.tokens else []

    def _encoded(self, text: str, special: bool) -> list[int]:
        tokens: list[int] = self._source.tokenizer(text, add_special_tokens=special).input_ids
        return tokens

    def _place(self, reading: Reading, logits: Tensor) -> None:
        """A prompt was read: its answer becomes a row of a batch that takes it."""
        asked, cache = reading.asked, reading.cache
        behind = reading.tokens[-_BEHIND:] if asked.prompt.style is None else None
        row = Row(
            asked,
            Words(self._source.tokenizer, asked.stops, behind),
            asked.sampling.choice(),
            answer_room(self._source.config, len(reading.tokens), asked.max_new_tokens),
            reading.tokens,
            len(reading.tokens),
            logits,
            reading.waited_seconds,
            time.monotonic() - reading.began,
        )
        asked.tell(Begun(row.prompt_tokens, reading.held))
        batch = next((each for each in self._batches if each.takes(cache)), None)
        if batch is None:
            self._batches.append(Batch(row, cache))
        else:
            batch.add(row, cache)

    def _answer(self, batch: Batch) -> None:
        """The next token of every row of a batch."""
        for row in batch.rows:
            with self._told_of_failure([row.asked]):
                row.say(self._stops)
        over = [row for row in batch.rows if row.over]
        for row in over:
            with self._told_of_failure([row.asked]):
                self._end(row, batch.cache_of(row))
        with self._told_of_failure([row.asked for row in batch.rows if row not in over]):
            batch.leave(over)
            if batch.rows:
                batch.step(self._model)
            return
        batch.rows = []

    def _end(self, row: Row, cache: CompressedCache) -> None:
        """Tells that an answer is whole, and keeps the conversation."""
        asked, stats = row.asked, cache.stats()
        if not asked.canceled and row.reason is not None:
            seconds = time.monotonic() - row.began
            # The cache may have been one with rows of other methods.
            method = str(asked.beginning.method)
            costs = Costs(method, stats.held_bytes, stats.full_bytes, row.waited_seconds, row.read_seconds, seconds)
            asked.tell(Finished(row.reason, len(row.said), costs))
        if not row.words.stopped:
            tokenizer, beginning = self._source.tokenizer, asked.beginning
            said = row.text
            if asked.prompt.style is not None:
                said = str(tokenizer.decode(row.said, skip_special_tokens=True))
            own = max(0, stats.held_bytes - beginning.nbytes)
            self._held.keep(beginning.name, Held(asked.prompt.answered(tokenizer, said), row.tokens, cache, own))

    @contextmanager
    def _told_of_failure(self, concerned: Sequence[Asked]) -> Iterator[None]:
        """Requests are told of what goes wrong within, which ends them; the engine goes on with others."""
        try:
            yield
        except Exception as problem:
            if is_out_of_memory(problem):
                self._held.forget()
            refused = _refusal(problem)
            for asked in concerned:
                asked.canceled = True
                asked.tell(Failed(refused))


def _refusal(problem: Exception) -> Refused:
    if isinstance(problem, Refused):
        return problem
    if isinstance(problem, WinnowError):
        return Refused(str(problem))
    if is_out_of_memory(problem):
        return Refused("memory ran out; ask for less at a time, or later.", status=503)
    _log.error("a request failed", exc_info=problem)
    return Refused(f"unexpected error, {type(problem).__name__}: {problem}", status=500)
