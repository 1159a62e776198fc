"""Prompts and documents prefilled once for several methods: the same answers from the same slots, and honest times."""

from __future__ import annotations

import pytest

import winnow
from support.asked import DOCUMENT, encoded
from winnow.evaluate.answering import ask_afterwards, compress_document, finish, read_with_question
from winnow.evaluate.comparing import document_by, prefilled_by
from winnow.evaluate.prompts import document_tokens
from winnow.evaluate.shared import dense_prompt

METHODS = [
    ("snapkv", 16, None),
    ("adakv", "10%", 4),
    ("keydiff", "40KiB", None),
    ("h2o", 24, 4),
    ("h2o", 20, 4),
    ("full", None, None),
]

pytestmark = pytest.mark.usefixtures("one_thread")


def outcome(model, tokenizer, prefilled):
    answer = finish(model, tokenizer, prefilled, 12)
    return answer.text, str(answer.method), answer.question_seen, answer.prompt_tokens, answer.stats.slots


@pytest.mark.parametrize("chunk_size", [None, 64])
def test_prompts_are_answered_as_if_each_method_had_read_them(model, source, chunk_size):
    prompt = encoded(source)
    dense = dense_prompt(model, prompt, chunk_size)
    for name, budget, fold in METHODS:
        method = winnow.method(name, budget)
        shared = prefilled_by(dense, method, prompt, fold)
        own = read_with_question(model, method, prompt, chunk_size, fold)
        assert outcome(model, source.tokenizer, shared) == outcome(model, source.tokenizer, own)


def test_documents_are_answered_as_if_each_method_had_read_them(model, source):
    prompt = encoded(source)
    tokens = prompt[:, : document_tokens(source.tokenizer, DOCUMENT.text, [prompt])]
    dense = dense_prompt(model, tokens)
    for name, budget, fold in METHODS:
        method = winnow.method(name, budget)
        shared, own = document_by(dense, method, tokens, fold), compress_document(model, method, tokens, None, fold)
        for index in (0, 1):
            asked = encoded(source, index)
            expected = outcome(model, source.tokenizer, ask_afterwards(model, own, asked))
            assert outcome(model, source.tokenizer, ask_afterwards(model, shared, asked)) == expected


def test_what_is_remembered_counts_for_every_method(model, source):
    prompt = encoded(source)
    dense = dense_prompt(model, prompt)
    prefilled = [prefilled_by(dense, winnow.method("h2o", budget), prompt) for budget in (16, 32)]
    assert prefilled[0].remembered_seconds == 0 < prefilled[1].remembered_seconds
    for each in prefilled:
        answer = finish(model, source.tokenizer, each, 1)
        assert answer.compress_seconds == answer.stats.compress_seconds + each.remembered_seconds
        assert answer.prefill_seconds == dense.seconds + answer.compress_seconds
