"""One model that answers many, in a thread of its own: prompts are read one by one, answers decoded side by side."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from threading import Condition, Thread
from typing import NamedTuple

from torch import Tensor
from transformers import PreTrainedModel

from winnow.cache.compressed import CompressedCache
from winnow.cache.while_graphed import step_graphs
from winnow.composition.method import Method
from winnow.errors import WinnowError, is_out_of_memory
from winnow.evaluate.conversation import tokens_behind
from winnow.evaluate.decoding import clock, stop_tokens
from winnow.evaluate.prompt_bytes import prompt_bytes
from winnow.evaluate.sampling import Sampling, among
from winnow.evaluate.shared_start import queries_alone
from winnow.models import ModelSource, answer_room
from winnow.models.kinds import starts_anew
from winnow.models.pieces import reads_in_pieces
from winnow.serve.asked import Asked, Begun, Costs, Failed, Finished
from winnow.serve.beginnings import Prompt
from winnow.serve.held import Held, HeldConversations
from winnow.serve.pace import Pace
from winnow.serve.reading import Reading
from winnow.serve.refusals import Refused
from winnow.serve.rows import Batch, Row, joins
from winnow.serve.starts import SharedStarts, Start
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
    starts: int = 8
    """Starts that several prompts have in common, held to be gone on with."""
    starts_bytes: int | None = None
    """Bytes of those; None for any number."""
    longest_pause: float = 0.2
    """Seconds that a piece of a prompt may take between two tokens of others' answers."""
    shortest_piece: int = 128
    """Tokens of such a piece at least, however long they take: all weights are read for each."""
    candidates: int = 0
    """Tokens that are looked up at a time for an answer without others beside it, and checked in one pass."""


class _Waiting(NamedTuple):
    """A request that waits for its turn."""

    since: float
    asked: Asked
    tokens: list[int]
    """Those of its prompt."""


class Engine:
    """The thread in which a model works. Requests come in and events go out from any other thread."""

    def __init__(self, source: ModelSource, model: PreTrainedModel, limits: Limits) -> None:
        self.limits = limits
        self._source = source
        self._model = model
        self.stops = stop_tokens(model)
        """Tokens that end an answer."""
        self._longest = max(len(each.encode("utf-8", "replace")) for each in source.tokenizer.get_vocab())
        """Bytes of a text that a token may be, at most."""
        # A file may say how texts are cut off. The first call forgets that, which no two threads may do at once.
        source.tokenizer("")
        self._in_pieces = reads_in_pieces(source.config)
        # What starts anew in every pass of several tokens would take a turn for the beginning.
        conversations = 0 if starts_anew(source.config) else limits.conversations
        self._held = HeldConversations(conversations, limits.held_bytes)
        self._starts = SharedStarts(limits.starts, limits.starts_bytes)
        self._waiting: deque[_Waiting] = deque()
        self._reading: Reading | None = None
        self._pace = Pace(limits.longest_pause, limits.shortest_piece)
        self._batches: list[Batch] = []
        self._closed = False
        self._changed = Condition()
        self._thread = Thread(target=self._work, name="winnow-engine", daemon=True)
        self._thread.start()

    def ask(self, asked: Asked) -> None:
        """Takes a request, whose events are told from now on; one that was canceled meanwhile is let go of.

        A long text takes its time to become tokens: that is done here, in a thread of whoever asks.

        Raises:
            Refused: too many wait; more answers to one prompt than there are rows; a prompt that has no tokens, or too
                many, or does not begin as it should.
        """
        if asked.answers > self.limits.rows:
            raise Refused(
                f"n={asked.answers} is more than the {self.limits.rows} rows of this server (--rows); ask for fewer "
                "answers.",
                "n",
            )
        since = time.monotonic()
        with self._changed:
            self._check_room()
        tokens = self._tokens(asked)
        with self._changed:
            self._check_room()
            if not asked.canceled:
                self._waiting.append(_Waiting(since, asked, tokens))
                self._changed.notify()

    def cancel(self, asked: Asked) -> None:
        """Nobody waits for the answers any more; they end with their next token or layer, or are not begun."""
        asked.canceled = True
        with self._changed:
            self._waiting = deque(each for each in self._waiting if each.asked is not asked)

    def stop(self) -> None:
        """Refuses all that is not finished: what waits at once, all else with its next token or layer."""
        with self._changed:
            self._closed = True
            waiting, self._waiting = self._waiting, deque()
            self._changed.notify()
        for each in waiting:
            each.asked.tell(Failed(_stopping()))

    def close(self, seconds: float = 5.0) -> bool:
        """Refuses all that is not finished, and ends the thread; False if it did not end in so many seconds."""
        self.stop()
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def counts(self) -> dict[str, int]:
        """Numbers of what is under way, as they are at this moment."""
        return {
            "waiting": len(self._waiting),
            "reading": int(self._reading is not None),
            "piece_tokens": self._pace.tokens,
            "answering": sum(len(batch.rows) for batch in self._batches),
            "conversations_held": len(self._held),
            "starts_held": len(self._starts),
        }

    def _check_room(self) -> None:
        """Raises Refused where no request is taken."""
        if self._closed:
            raise Refused("the server is about to stop.", status=503)
        if len(self._waiting) >= self.limits.waiting:
            raise Refused(f"{len(self._waiting)} requests are waiting already; try again later.", status=503)

    def _tokens(self, asked: Asked) -> list[int]:
        """A whole prompt as tokens, with room for an answer behind them. Raises Refused."""
        beginning, prompt, most = asked.beginning, asked.prompt, self._source.context
        size = len(prompt.text.encode())
        if most is not None and size > most * self._longest:
            # Not worth the time and the memory that its tokens would take.
            raise self._too_long(prompt, f"{size:,} bytes")
        tokens = self._encoded(prompt)
        if not tokens:
            raise Refused(f"{prompt.field} has no tokens: say something.", prompt.field)
        if not beginning.begins(tokens):
            raise Refused(
                f"the question runs together with the end of the document of {beginning.name}; begin it with a word.",
                prompt.field,
            )
        if not self._fits(len(tokens)):
            raise self._too_long(prompt, f"{len(tokens):,} tokens")
        return tokens

    def _encoded(self, prompt: Prompt) -> list[int]:
        tokens: list[int] = self._source.tokenizer(prompt.text, add_special_tokens=not prompt.templated).input_ids
        return tokens

    def _fits(self, tokens: int) -> bool:
        """True if the model has room for an answer behind so many tokens."""
        most = self._source.context
        return most is None or tokens < most

    def _too_long(self, prompt: Prompt, size: str) -> Refused:
        return Refused(
            f"the prompt has {size} and needs room for an answer; the model reads {self._source.context:,} tokens.",
            prompt.field,
            code="context_length_exceeded",
        )

    # --- in the thread -------------------------------------------------------------------------------------

    def _work(self) -> None:
        while self._has_work():
            # Until there is nothing to do: graphs hold the cache of the latest answer.
            with step_graphs(self._model):
                while self._is_busy() and not self._closed:
                    self._read()
                    self._answer_all()
        self._refuse_all()

    def _has_work(self) -> bool:
        """Waits until there is something to do; False if the engine is closed."""
        with self._changed:
            while not (self._closed or self._is_busy()):
                self._changed.wait()
            return not self._closed

    def _is_busy(self) -> bool:
        return bool(self._waiting or self._reading or self._batches)

    def _refuse_all(self) -> None:
        reading = [] if self._reading is None else [self._reading.asked]
        answering = [row.asked for batch in self._batches for row in batch.rows]
        for asked in dict.fromkeys((*reading, *answering)):
            asked.tell(Failed(_stopping()))

    def _read(self) -> None:
        """Goes on with a prompt, or begins with the one that waits for longest, if there is room for its answers."""
        if self._reading is None:
            room = self.limits.rows - self.counts()["answering"]
            with self._changed:
                fits = bool(self._waiting) and self._waiting[0].asked.answers <= room
                next_one = self._waiting.popleft() if fits else None
            if next_one is not None:
                with self._told_of_failure([next_one.asked]):
                    self._reading = self._begun(next_one)
        reading = self._reading
        if reading is not None and not reading.asked.canceled:
            with self._told_of_failure([reading.asked]):
                logits = self._go_on(reading)
                if logits is None:
                    return
                self._place(reading, logits)
        self._reading = None

    def _go_on(self, reading: Reading) -> Tensor | None:
        """Reads a piece of a prompt while others are answered, or else all of it; the logits [V] after its end."""

        def check() -> None:
            self._check_wanted(reading.asked)

        if not (self._batches and self._in_pieces):
            return reading.go_on(self._model, None, check)
        read, began = reading.read, clock(self._model)
        logits = reading.go_on(self._model, self._pace.tokens, check)
        if logits is None:  # with the last piece the prompt is compressed, too
            self._pace.took(reading.read - read, clock(self._model) - began)
        return logits

    def _check_wanted(self, asked: Asked) -> None:
        """Raises Refused if an answer is not waited for any more."""
        if asked.canceled or self._closed:
            raise _stopping()

    def _begun(self, waiting: _Waiting) -> Reading:
        """A prompt behind the longest conversation that it continues, or behind what it begins with as others do."""
        asked, tokens = waiting.asked, waiting.tokens
        beginning, waited = asked.beginning, time.monotonic() - waiting.since
        held = self._held.longest(_kind(asked), asked.prompt.text)
        new = [] if held is None else self._behind(held, asked.prompt, tokens)
        if held is not None and new and self._fits(len(held.tokens) + len(new)):
            return Reading(asked, held.tokens + new, held.cache, waited)
        if beginning.tokens or not self._in_pieces:
            return Reading(asked, tokens, beginning.cache(len(tokens)), waited)
        return self._behind_start(asked, tokens, waited)

    def _behind_start(self, asked: Asked, tokens: list[int], waited: float) -> Reading:
        """A prompt behind the longest start that is held; it leaves a longer one behind if others have that, too."""
        kind, method = _kind(asked), asked.beginning.method
        with self._changed:
            waiting = [each.tokens for each in self._waiting if _kind(each.asked) == kind]
        start, shared = self._starts.begin(
            kind, tokens, waiting, lambda count: _dense_bytes(self._model, method, count)
        )
        # A cache that becomes a start has room for it alone.
        length = shared + 1 if shared else len(tokens)
        cache = asked.beginning.cache(length) if start is None else start.fork(length)

        def keep(read: CompressedCache) -> None:
            self._starts.keep(kind, Start(tuple(tokens[:shared]), read, read.stats().held_bytes))

        return Reading(asked, tokens, cache, waited, shared, keep)

    def _behind(self, held: Held, prompt: Prompt, whole: list[int]) -> list[int]:
        """The tokens of a prompt behind a conversation; none where it is to be read anew."""
        known = len(held.tokens)
        if whole[:known] == held.tokens:
            return whole[known:]
        # The model may have said an answer in other tokens, which a template ends. Nothing marks the end of an answer
        # in a text that goes on: its last word may, and be another token then.
        return [] if prompt.style is None else tokens_behind(self._source.tokenizer, held.text, prompt.text)

    def _place(self, reading: Reading, logits: Tensor) -> None:
        """A prompt was read: its answers become rows of a batch that takes them."""
        asked, cache = reading.asked, reading.cache
        rows = [self._row(reading, logits, number) for number in range(asked.answers)]
        asked.tell(Begun(len(reading.tokens), reading.held))
        batch = next((each for each in self._batches if each.takes(cache)), None)
        if batch is not None:
            batch.add(rows, cache)
        elif joins(cache):
            self._batches.append(Batch(rows, cache, self.limits.candidates))
        else:
            caches = [deepcopy(cache) if row.number else cache for row in rows]
            self._batches += [Batch([row], own, self.limits.candidates) for row, own in zip(rows, caches, strict=True)]

    def _row(self, reading: Reading, logits: Tensor, number: int) -> Row:
        asked, tokens = reading.asked, reading.tokens
        behind = tokens[-_BEHIND:] if asked.prompt.style is None else None
        choice, guide = _sampling(asked, number).choice(), None
        if asked.grammar is not None:
            guide = asked.grammar.start()
            choice = among(choice, guide.allowed)
        return Row(
            asked,
            Words(self._source.tokenizer, asked.stops, behind, special=asked.prompt.form is not None),
            choice,
            answer_room(self._source.config, len(tokens), asked.max_new_tokens),
            list(tokens),
            len(tokens),
            logits,
            reading.waited_seconds,
            time.monotonic() - reading.began,
            number=number,
            guide=guide,
        )

    def _answer_all(self) -> None:
        """The next token of every row. Nothing keeps a batch, and its cache, whose rows are over."""
        for batch in self._batches:
            self._answer(batch)
        self._batches = [batch for batch in self._batches if batch.rows]

    def _answer(self, batch: Batch) -> None:
        """The next token of every row of a batch."""
        for row in batch.rows:
            if not row.asked.canceled:  # also by another row of it
                with self._told_of_failure([row.asked]):
                    row.say(self.stops)
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
            asked.tell(Finished(row.reason, len(row.said), costs, row.number, row.cut))
        # Who went away may come back to one of the answers; more of them would take the place of others' conversations.
        if not row.words.stopped and not (asked.canceled and row.number):
            tokenizer, beginning = self._source.tokenizer, asked.beginning
            said = row.text
            if asked.prompt.style is not None:
                said = str(tokenizer.decode(row.said, skip_special_tokens=asked.prompt.form is None))
            own = max(0, stats.held_bytes - beginning.nbytes)
            self._held.keep(_kind(asked), Held(asked.prompt.answered(tokenizer, said), row.tokens, cache, own))

    @contextmanager
    def _told_of_failure(self, concerned: Sequence[Asked]) -> Iterator[None]:
        """Requests are told of what goes wrong within, which ends them; the engine goes on with others."""
        try:
            yield
        except Exception as problem:
            if is_out_of_memory(problem):
                self._held.forget()
                self._starts.forget()
            refused = _refusal(problem)
            for asked in concerned:
                # Several rows may be one request's.
                if not asked.canceled:
                    asked.canceled = True
                    asked.tell(Failed(refused))


def _kind(asked: Asked) -> tuple[str, bool]:
    """Requests of one kind go on with each other's conversations: the same text may be other tokens elsewhere."""
    return asked.beginning.name, asked.prompt.templated


def _dense_bytes(model: PreTrainedModel, method: Method, tokens: int) -> int:
    """Bytes of the first tokens of a prompt, while they wait for the rest of it."""
    return prompt_bytes(model).dense(tokens, queries_alone(method, tokens, None))


def _sampling(asked: Asked, number: int) -> Sampling:
    """Settings of one of the answers to a prompt. Each draws by a seed of its own, which a request can name, too."""
    sampling = asked.sampling
    return sampling if not number or sampling.seed is None else replace(sampling, seed=sampling.seed + number)


def _stopping() -> Refused:
    return Refused("the server stops.", status=503)


def _refusal(problem: Exception) -> Refused:
    if isinstance(problem, Refused):
        return problem
    if isinstance(problem, WinnowError):
        return Refused(str(problem))
    if is_out_of_memory(problem):
        return Refused("memory ran out; ask for less at a time, or later.", status=503)
    _log.error("a request failed", exc_info=problem)
    return Refused(f"unexpected error, {type(problem).__name__}: {problem}", status=500)
