"""Answers to questions that come with the document, in chunks, or afterwards."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

import winnow
from support.asked import DOCUMENT, encoded
from winnow.evaluate import answering
from winnow.evaluate.answering import ask_afterwards, compress_document, finish, read_with_question
from winnow.evaluate.prompts import document_tokens

pytestmark = pytest.mark.usefixtures("one_thread")


def test_the_question_is_not_seen_when_it_comes_afterwards(model, source):
    prompts = [encoded(source, index) for index in range(2)]
    start = document_tokens(source.tokenizer, DOCUMENT.text, prompts)
    text = source.tokenizer.decode(prompts[0][0, :start])
    assert text.endswith("question :")
    document = compress_document(model, winnow.method("snapkv", 16), prompts[0][:, :start])
    answers = [finish(model, source.tokenizer, ask_afterwards(model, document, p), 6) for p in prompts]
    assert not any(answer.question_seen for answer in answers)
    assert answers[0].stats.slots == answers[1].stats.slots
    assert int(document.context.kept(0)[0].max()) < start
    assert answers[1].prompt_tokens == prompts[1].shape[1]


def test_chunked_prefill_gives_the_same_answer(model, source):
    method = winnow.method("adakv", 24)
    whole, chunked = (
        finish(model, source.tokenizer, read_with_question(model, method, encoded(source), chunk), 8)
        for chunk in (None, 50)
    )
    assert whole.text == chunked.text
    assert whole.stats.slots == chunked.stats.slots


def test_an_answer_that_the_limit_ends_takes_a_step_less_than_it_has_tokens(model, source):
    answer = finish(model, source.tokenizer, read_with_question(model, winnow.method("full"), encoded(source)), 1)
    assert (answer.new_tokens, answer.decode_steps, answer.decode_speed) == (1, 0, None)


def test_documents_are_read_on_the_models_device(monkeypatch):
    given = []

    class Tokens:
        """Those that nobody can move here: the devices that they are to go to."""

        shape = (1, 4)

        def to(self, device):
            return device

    monkeypatch.setattr(answering, "compress", lambda model, tokens, *_, **__: given.append(str(tokens)))
    monkeypatch.setattr(answering, "clock", lambda model: 0.0)
    for device in ("cuda:1", "meta"):
        away = SimpleNamespace(device=torch.device(device), modules=lambda: [SimpleNamespace(_hf_hook=None)])
        compress_document(away, winnow.method("full"), Tokens())
    assert given == ["cuda:1", "cpu"]
