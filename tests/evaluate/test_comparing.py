"""Prompts and documents prefilled once for several methods: the same answers from the same slots, and honest times."""

from __future__ import annotations

import pytest

import winnow
from support.asked import DOCUMENT, encoded
from support.families import build, prompt
from winnow.errors import CacheError
from winnow.evaluate.answering import ask_afterwards, compress_document, finish, read_with_question
from winnow.evaluate.checking import check_shapes
from winnow.evaluate.comparing import document_by, prefilled_by
from winnow.evaluate.decoding import decode
from winnow.evaluate.prompts import document_tokens
from winnow.evaluate.shared import DenseReader, queries_of

METHODS = [
    (winnow.method(name), fold)
    for name, fold in [
        ("snapkv@16", None),
        ("adakv@10%", 4),
        ("keydiff@40KiB", None),
        ("h2o@24", 4),
        ("h2o@20", 4),
        ("snapkv+bits(4)@16", 12),
        ("full", None),
    ]
]
FEW = [each for each in METHODS if each[0].scorer.queries_needed(1000) < 1000]

pytestmark = pytest.mark.usefixtures("one_thread")


def outcome(model, tokenizer, prefilled):
    answer = finish(model, tokenizer, prefilled, 12)
    return answer.text, str(answer.method), answer.question_seen, answer.prompt_tokens, answer.stats.slots


@pytest.mark.parametrize("chunk_size", [None, 64])
@pytest.mark.parametrize("compared", [METHODS, FEW], ids=["all queries", "few queries"])
def test_prompts_are_answered_as_if_each_method_had_read_them(model, source, chunk_size, compared):
    prompt = encoded(source)
    dense = DenseReader(model, [each for each, _ in compared], chunk_size, fold_every=12).read(prompt)
    for method, fold in compared:
        shared = prefilled_by(dense, method, prompt, fold)
        own = read_with_question(model, method, prompt, chunk_size, fold)
        assert outcome(model, source.tokenizer, shared) == outcome(model, source.tokenizer, own)


def test_documents_are_answered_as_if_each_method_had_read_them(model, source):
    prompt = encoded(source)
    tokens = prompt[:, : document_tokens(source.tokenizer, DOCUMENT.text, [prompt])]
    dense = DenseReader(model, [each for each, _ in METHODS], fold_every=12).read(tokens)
    for method, fold in METHODS:
        shared, own = document_by(dense, method, tokens, fold), compress_document(model, method, tokens, None, fold)
        for index in (0, 1):
            asked = encoded(source, index)
            expected = outcome(model, source.tokenizer, ask_afterwards(model, own, asked))
            assert outcome(model, source.tokenizer, ask_afterwards(model, shared, asked)) == expected


def test_what_is_remembered_counts_for_every_method(model, source):
    prompt = encoded(source)
    methods = [winnow.method("h2o", budget) for budget in (16, 32)]
    dense = DenseReader(model, methods).read(prompt)
    prefilled = [prefilled_by(dense, each, prompt) for each in methods]
    assert prefilled[0].remembered_seconds == 0 < prefilled[1].remembered_seconds
    for each in prefilled:
        answer = finish(model, source.tokenizer, each, 1)
        assert answer.compress_seconds == answer.stats.compress_seconds + each.remembered_seconds
        assert answer.prefill_seconds == dense.seconds + answer.compress_seconds


def test_only_the_queries_that_the_methods_look_at_wait(model, source):
    prompt = encoded(source)
    length = prompt.shape[1]
    few, many = [winnow.method(name, 16) for name in ("snapkv", "tova")], [winnow.method("h2o", 16)]
    assert {queries_of(each, length, None) for each in few} == {1, few[0].scorer.window}
    assert queries_of(many[0], length, None) == length
    layers = len(DenseReader(model, few).read(prompt)._cache.layers)
    query_bytes = model.config.num_attention_heads * model.config.head_dim * 4
    held = {
        len(methods): DenseReader(model, methods).read(prompt)._cache.stats().held_bytes
        for methods in (few, [*few, *many])
    }
    assert held[3] - held[2] == layers * query_bytes * (length - few[0].scorer.window)


def test_queries_wait_for_folds_to_come(model, source):
    """A prompt within the budget is not ranked yet: what folds look at later is more than its compression does."""
    method, prompt = winnow.method("expectedattention", 10), encoded(source)[:, :20]
    assert queries_of(method, 20, fold_every=32) == 20
    prefilled_by(DenseReader(model, [method], fold_every=32).read(prompt), method, prompt, 32)


def test_a_method_that_looks_at_more_queries_than_wait_is_refused(model, source):
    dense = DenseReader(model, [winnow.method("snapkv", 16)]).read(encoded(source))
    for name in ("h2o@16", "snapkv(window=12)@16"):
        with pytest.raises(CacheError, match="waiting_queries"):
            dense.compress(winnow.method(name))


@pytest.mark.parametrize("family", ["gpt2", "gemma3_text", "gemma3n_text", "gpt_oss", "qwen3_next", "falcon_h1"])
def test_layers_of_every_kind_are_shared(family):
    model = build(family)
    model.set_attn_implementation("winnow")
    ids, methods = prompt(length=60), [winnow.method(name) for name in ("snapkv@20", "tova@30%", "adakv@1MiB", "full")]
    check_shapes(model, methods, [60])
    dense = DenseReader(model, methods, fold_every=4).read(ids)
    for method in methods:
        fold = None if method.full or method.budget.unit == "bytes" else 4
        both = prefilled_by(dense, method, ids, fold), read_with_question(model, method, ids, None, fold)
        first, second = ([*decode(model, each.cache, each.logits, 9, frozenset())] for each in both)
        assert first == second
