"""The turns of a chat, and the commands between them."""

from __future__ import annotations

import re
from contextlib import nullcontext
from typing import NamedTuple

from rich.console import Console

from winnow.budget import DEFAULT_BUDGET
from winnow.commands.answer_stream import AnswerStream
from winnow.commands.answers import print_text
from winnow.commands.chat_reader import Reader
from winnow.commands.checks import check_memory
from winnow.commands.formats import written_bytes, written_share
from winnow.commands.inputs import InputError, sampling_of
from winnow.commands.options.chat import ChatOptions
from winnow.commands.prefill_progress import reading
from winnow.commands.progress import stage
from winnow.commands.vocabulary import warn_of_unknown_words
from winnow.composition.method import Method
from winnow.composition.names import NamedMethod
from winnow.evaluate.conversation import Beginning, Conversation, Reply
from winnow.models import answer_room

HELP = """\
/stats          what the cache holds, and what the whole one would
/method         the method; /method NAME reads document and conversation again with another: /method snapkv @ 256
/reset          forgets the conversation, not the document
/help           this list
/quit           ends the chat, as Ctrl-D does
Anything else is a question. Ctrl-C stops an answer."""


class Opened(NamedTuple):
    """A document that was read, and the method that compressed it."""

    reader: Reader
    method: Method
    beginning: Beginning


class Session:
    """A conversation on a console."""

    def __init__(self, opened: Opened, options: ChatOptions, console: Console, foreign: bool) -> None:
        """foreign: the document's words are unknown, as was said; those of questions then need no warning."""
        self._reader = opened.reader
        self._method = opened.method
        self._options = options
        self._console = console
        self._foreign = foreign
        self._choice = sampling_of(options).choice()
        self._conversation = self._conversation_on(opened.beginning)

    def take(self, line: str) -> bool:
        """Answers a question, or carries out a command; False if that is to end.

        Raises:
            InputError: an unknown command; a conversation that is longer than the model can read.
            KeyboardInterrupt: an answer was stopped, which counts as far as it was said; or something that is read,
                and the conversation is what it was.
        """
        command = re.fullmatch(r"/(\w*)(?:\s+(.*))?", line)
        if command is None:
            self._ask(line)
            return True
        name, argument = command[1], (command[2] or "").strip()
        if name in ("quit", "exit"):
            return False
        self._run(name, argument)
        return True

    def _run(self, name: str, argument: str) -> None:
        if name == "stats":
            self._print_stats()
        elif name == "method":
            self._change_method(argument)
        elif name == "reset":
            self._conversation.forget()
            self._say("The conversation is forgotten.")
        elif name == "help":
            self._say(HELP)
        else:
            raise InputError(f"There is no command /{name}; /help lists them.")

    def _ask(self, question: str) -> None:
        prompt = self._conversation.prompt(question)
        self._check_room(len(prompt.tokens))
        if not self._foreign:
            warn_of_unknown_words(self._reader.source, [("the question", question)])
        with reading(self._reader.model, len(prompt.unread)):
            logits = self._conversation.read(prompt)
        tokenizer = self._reader.source.tokenizer
        streamer = AnswerStream(tokenizer, self._console) if self._console.is_terminal else None
        limit = answer_room(self._reader.source.config, len(prompt.tokens), self._options.max_new_tokens)
        with nullcontext() if streamer else stage("Answering"):
            reply = self._conversation.answer(prompt, logits, limit, self._choice, streamer, self._options.lookup)
        if streamer is None:
            print_text(self._console, reply.text)
        self._console.print(_ending(reply, limit), style="dim", markup=False)
        if reply.interrupted:
            raise KeyboardInterrupt

    def _check_room(self, tokens: int) -> None:
        """Raises InputError where a conversation of so many tokens leaves no room for an answer."""
        most = self._reader.source.context
        if most is not None and tokens >= most:
            raise InputError(
                f"The conversation has {tokens:,} tokens with this question, which leaves no room for an answer: the "
                f"model reads at most {most:,}. Ask a shorter question, or forget the conversation so far with /reset."
            )

    def _change_method(self, text: str) -> None:
        if text:
            named = NamedMethod(text)
            own = named.budget is not None or not named.takes_budget
            kept = self._method.budget
            method = named.method() if own else named.method(DEFAULT_BUDGET if kept.unit == "everything" else str(kept))
            check_memory([method], self._options.device)
            beginning = self._reader.read(method)
            self._method, self._conversation = method, self._conversation_on(beginning, self._conversation)
        self._say(f"{self._method}")

    def _conversation_on(self, beginning: Beginning, earlier: Conversation | None = None) -> Conversation:
        turns = () if earlier is None else earlier.turns
        reader = self._reader
        return Conversation(reader.model, reader.source.tokenizer, reader.subject, beginning, turns)

    def _print_stats(self) -> None:
        cache = self._conversation.cache
        every, stats = cache.compression.fold_every, cache.stats()
        folding = "memory grows with every token" if every is None else f"compressed again every {every:,} tokens"
        self._say(f"{self._method}, {folding}; turns so far: {len(self._conversation.turns):,}")
        if not stats.tokens_seen:
            self._say("nothing was read yet")
            return
        parts = {
            "compressed": stats.prefix_bytes,
            "dense": stats.tail_bytes,
            "room for more": stats.reserve_bytes,
            "other": stats.other_bytes,
        }
        self._say(" · ".join(f"{name}: {written_bytes(size)}" for name, size in parts.items()))
        share = written_share(stats.held_bytes, stats.full_bytes)
        self._say(
            f"held: {written_bytes(stats.held_bytes)} for {stats.tokens_seen:,} tokens, {share} of the "
            f"{written_bytes(stats.full_bytes)} of a full cache"
        )

    def _say(self, text: str) -> None:
        self._console.print(text, style="dim", markup=False, soft_wrap=True)


def _ending(reply: Reply, limit: int) -> str:
    """A remark behind an answer, where there is one to make."""
    if reply.tokens == limit and not reply.interrupted:
        return f" (cut off after {limit:,} tokens)"
    return "" if reply.text or reply.interrupted else "(nothing)"
