"""Requests for an engine, and the events that it tells of them."""

from __future__ import annotations

import random
import threading
import time
from copy import deepcopy

import torch

import winnow
from support.asked import DOCUMENT
from support.families import FAMILIES, build
from winnow.cache.compressed import CompressedCache
from winnow.evaluate.answering import finish, read_with_question
from winnow.evaluate.conversation import Beginning as Start
from winnow.evaluate.conversation import Conversation
from winnow.evaluate.decoding import decode, prefill, stop_tokens
from winnow.evaluate.sampling import GREEDY, Sampling, most_likely
from winnow.evaluate.turns import Subject
from winnow.models import ModelSource
from winnow.serve.asked import Asked, Begun, Failed, Finished, Said
from winnow.serve.beginnings import Beginning, Prompt, prompt_of
from winnow.serve.wanted import Message, Wanted
from winnow.tasks.prompt_style import USUAL

METHODS = {"full": "full", "adakv": "adakv @ 24", "snapkv": "snapkv @ 16"}
WORDS = [word for word in DOCUMENT.text.split() if word.isalpha()]
QUESTIONS = [question.text for question in DOCUMENT.questions]
DRAWN = Sampling(0.9, 0.95, seed=3)


def text_of(length, seed):
    """So many words that the bundled model knows."""
    return " ".join(random.Random(seed).choices(WORDS, k=length))


def small(source, family="llama", **overrides):
    """A random model with the vocabulary of the bundled one, and its source."""
    options = {"vocab_size": len(source.tokenizer), "max_position_embeddings": 1024, **overrides}
    if "vocab_size_per_layer_input" in FAMILIES.get(family, {}):
        options["vocab_size_per_layer_input"] = options["vocab_size"]
    model = build(family, **options)
    model.set_attn_implementation("winnow")
    return ModelSource(f"small-{family}", model.config, source.tokenizer), model


def beginning(model, method="full", name="m", fold=None):
    """A model as it is."""
    chosen = winnow.method(method)

    def made(length):
        return CompressedCache(model, chosen, prompt_length=length, fold_every=fold, fold_turns=fold)

    return Beginning(name, chosen, Subject(None, USUAL), (), made)


def about(context, document, name="doc", style=USUAL):
    """A model with a document that was compressed."""
    tokens = tuple(context.input_ids[0].tolist())
    return Beginning(name, context.method, Subject(document, style), tokens, lambda length: context.cache())


def wanted(*said, text=""):
    """A conversation, the user's words first; or a text to go on with."""
    roles = ("user", "assistant") * len(said)
    messages = tuple(Message(role, content) for role, content in zip(roles, said, strict=False))
    return Wanted(None, messages, text, None, None, None, None, (), False, False)


class Told:
    """A request, and what was told of it."""

    def __init__(self, start, prompt, most=8, sampling=GREEDY, stops=(), at=None):
        """at: called with every event, in the engine's thread."""
        self.events = []
        self.first, self.ended = threading.Event(), threading.Event()
        self._at = at
        self.asked = Asked(start, prompt, sampling, most, stops, self._tell)

    def _tell(self, event):
        self.events.append(event)
        self.first.set()
        if isinstance(event, Finished | Failed):
            self.ended.set()
        if self._at is not None:
            self._at(event)

    def wait(self):
        """Itself, once all is told."""
        assert self.ended.wait(60), self.events
        return self

    @property
    def text(self):
        return "".join(event.text for event in self.events if isinstance(event, Said))

    @property
    def begun(self):
        (event,) = (event for event in self.events if isinstance(event, Begun))
        return event

    @property
    def last(self):
        return self.events[-1]

    @property
    def problem(self):
        assert isinstance(self.last, Failed), self.events
        return self.last.problem


def idle(engine, seconds=20):
    """Counts, once the engine has nothing to do."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        counts = engine.counts()
        if not (counts["waiting"] or counts["reading"] or counts["answering"]):
            return counts
        time.sleep(0.005)
    raise AssertionError(engine.counts())


class Gate:
    """Keeps the engine's thread at an event, until it is opened."""

    def __init__(self, kind=Begun):
        self.reached, self.opened = threading.Event(), threading.Event()
        self._kind = kind

    def __call__(self, event):
        if isinstance(event, self._kind) and not self.reached.is_set():
            self.reached.set()
            assert self.opened.wait(60)


def told(engine, start, text, **options):
    """A text to be gone on with, given to an engine."""
    asked = Told(start, Prompt(text, False, None), **options)
    engine.ask(asked.asked)
    return asked


def chatted(engine, source, start, *said, **options):
    """A conversation, given to an engine."""
    asked = Told(start, prompt_of(source.tokenizer, start, wanted(*said)), **options)
    engine.ask(asked.asked)
    return asked


def alone(source, model, method, text, most=8, sampling=GREEDY, fold=None):
    """The text of an answer that nobody else is beside."""
    ids = source.tokenizer(text, return_tensors="pt").input_ids
    prefilled = read_with_question(model, winnow.method(method), ids, fold_every=fold)
    return finish(model, source.tokenizer, prefilled, most, sampling).text


def alone_in_turn(source, model, method, questions, most=8, fold=None, document=None, context=None):
    """The answers of a conversation that has the model for itself."""
    if context is None:
        empty = CompressedCache(model, winnow.method(method), fold_every=fold, fold_turns=fold)
        start = Start(torch.zeros(1, 0, dtype=torch.int64), lambda: deepcopy(empty))
    else:
        start = Start(context.input_ids, context.cache)
    conversation = Conversation(model, source.tokenizer, Subject(document), start)
    answers = []
    for question in questions:
        prompt = conversation.prompt(question)
        answers.append(conversation.answer(prompt, conversation.read(prompt), most, most_likely).text)
    return answers


def stepwise(source, model, text, most=8):
    """The text of an answer by a full cache, token by token."""
    ids = source.tokenizer(text, return_tensors="pt").input_ids
    cache = CompressedCache(model, winnow.method("full"))
    said = list(decode(model, cache, prefill(model, ids, cache), most, stop_tokens(model)))
    return source.tokenizer.decode(said, skip_special_tokens=True).strip()
