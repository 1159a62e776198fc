"""Answers to questions that come with the document, in chunks, or afterwards."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

import winnow
from support.asked import DOCUMENT, encoded
from winnow.errors import MethodError
from winnow.evaluate import answering
from winnow.evaluate.answering import ask_afterwards, compress_document, finish, read_on, read_with_question
from winnow.evaluate.prompts import document_tokens
from winnow.evaluate.shared import DenseReader
from winnow.evaluate.shared_start import shared_start

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


def test_whatever_reads_a_prompt_reads_pieces_of_the_chunk_size(model, source):
    prompts, method = [encoded(source, index) for index in range(2)], winnow.method("adakv", 24)
    passes = []
    hook = model.get_input_embeddings().register_forward_hook(lambda _, given, __: passes.append(given[0].shape[1]))
    reader = DenseReader(model, [method], chunk_size=3)
    try:
        for read in (
            lambda: read_with_question(model, method, prompts[0], 3),
            lambda: read_on(model, shared_start(model, prompts, method, 3), prompts[0], 3),
            lambda: reader.read(prompts[0]),
            lambda: reader.read_start(prompts).dense(prompts[0]),
            lambda: compress_document(model, method, prompts[0], 3),
        ):
            passes.clear()
            read()
            assert max(passes) == 3
            assert sum(passes) == prompts[0].shape[1]
    finally:
        hook.remove()


def test_answers_to_what_was_compressed_before_are_folded(model, source):
    prompt = encoded(source)
    document = compress_document(model, winnow.method("adakv", 24), prompt[:, :-8], fold_every=4)
    assert document.context.cache().compression.fold_every == 4
    with pytest.raises(MethodError, match="leave fold_every out"):
        read_with_question(model, winnow.method("kvzip", 24), prompt, fold_every=4, words=source.tokenizer)


def test_all_that_was_done_for_an_answer_counts(model, source):
    """The document's reading and scoring, for every question about it."""
    prompt = encoded(source)
    document = compress_document(model, winnow.method("adakv", 24), prompt[:, :-8])
    read = ask_afterwards(model, document._replace(seconds=1000.0, remembered_seconds=500.0), prompt)
    assert 1000 < read.seconds < 2000
    assert 500 < finish(model, source.tokenizer, read, 1).compress_seconds < 1000
    repeated = read_with_question(model, winnow.method("kvzip", 24), prompt, words=source.tokenizer)
    assert repeated.seconds > repeated.cache.stats().compress_seconds > 0


def test_an_answer_is_told_without_special_tokens_and_space_around_it(model, source):
    tokenizer = SimpleNamespace(decode=lambda _, skip_special_tokens=False: " it \n" if skip_special_tokens else "</s>")
    read = read_with_question(model, winnow.method("full"), encoded(source))
    assert finish(model, tokenizer, read, 2).text == "it"


def test_an_answer_that_a_stop_token_ends_takes_a_step_for_each_of_its_tokens(model, source):
    answer = finish(model, source.tokenizer, read_with_question(model, winnow.method("full"), encoded(source)), 60)
    assert answer.text == DOCUMENT.questions[0].answer
    assert answer.decode_steps == answer.new_tokens < 60
    assert replace(answer, decode_seconds=0.0).decode_speed is None  # by a clock that is too coarse


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
