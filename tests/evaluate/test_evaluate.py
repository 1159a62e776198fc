"""Evaluation takes shortcuts (shared prefills, remembered scores, batches); none of them may change a result."""

from __future__ import annotations

import pytest
import torch

import winnow
from support.families import build, prompt
from winnow.bundled import MODEL_PATH
from winnow.evaluate import evaluate, grid, summarise
from winnow.evaluate.answering import ask_afterwards, compress_document, finish, read_with_question
from winnow.evaluate.batch import Row, can_be_joined, decode_batch
from winnow.evaluate.facts import fact_sentences, fact_tokens
from winnow.evaluate.greedy import decode, prefill, stop_tokens
from winnow.evaluate.prompts import common_start, document_tokens, encode_prompt
from winnow.evaluate.shared import SharedPrefill
from winnow.models import load_model, open_model
from winnow.tasks import Question, format_prompt, generate_document

pytestmark = pytest.mark.usefixtures("one_thread")

DOCUMENT = generate_document(3, tokens=200, questions_per_kind=1)
METHODS = ["snapkv", "adakv", "ada-pyramidkv", "h2o", "tova", "streamingllm", "keydiff", "random"]


@pytest.fixture(scope="module")
def source():
    return open_model(MODEL_PATH)


@pytest.fixture(scope="module")
def model(source):
    return load_model(source, "cpu", "float32")


def encoded(source, index=0):
    return encode_prompt(source.tokenizer, DOCUMENT.text, DOCUMENT.questions[index].text)


@pytest.mark.parametrize("name", ["full", "adakv"])
def test_greedy_decoding_is_what_generate_does(model, source, name):
    method = winnow.method(name, None if name == "full" else 24)
    ids = encoded(source)
    expected = model.generate(
        ids, past_key_values=winnow.CompressedCache(model, method), max_new_tokens=12, do_sample=False
    )
    cache = winnow.CompressedCache(model, method)
    tokens = list(decode(model, cache, prefill(model, ids, cache), 12, stop_tokens(model)))
    new = expected[0, ids.shape[1] :].tolist()
    assert tokens == [token for token in new if token not in stop_tokens(model)]


def test_decoding_stops_at_a_stop_token_and_at_the_limit(model, source):
    ids = encoded(source)
    cache = winnow.CompressedCache(model, winnow.method("full"))
    free = list(decode(model, cache, prefill(model, ids, cache), 5, frozenset()))
    assert len(free) == 5
    assert cache.get_seq_length() == ids.shape[1] + 4
    cache = winnow.CompressedCache(model, winnow.method("full"))
    assert list(decode(model, cache, prefill(model, ids, cache), 5, frozenset(free[:1]))) == []


@pytest.mark.parametrize("name", METHODS)
def test_a_shared_prefill_keeps_what_an_own_one_keeps(model, source, name):
    prompts = [encoded(source, index) for index in range(3)]
    shared = SharedPrefill(model, prompts)
    dense = shared.dense(prompts[1])
    for budget in (16, 40):
        method = winnow.method(name, budget)
        own = read_with_question(model, method, prompts[1])
        ours = dense.compress(method).cache
        torch.testing.assert_close(dense.logits, own.logits, atol=1e-4, rtol=1e-4)
        for layer in range(len(own.cache.layers)):
            for kept, expected in zip(ours.kept(layer), own.cache.kept(layer), strict=True):
                assert torch.equal(kept, expected)
        assert str(ours.method) == str(method)


def test_prompts_are_shared_up_to_the_question(model, source):
    prompts = [encoded(source, index) for index in range(2)]
    shared = SharedPrefill(model, prompts)
    assert shared.start == common_start(prompts) > 150
    assert SharedPrefill(model, prompts[:1]).start == prompts[0].shape[1] - 1


def test_batches_do_not_change_answers(model, source):
    methods = grid(["full", "adakv", "streamingllm"], [16, 64])
    texts = [
        {
            (str(trial.method), trial.question.text): trial.text
            for trial in evaluate(model, source.tokenizer, DOCUMENT.text, DOCUMENT.questions, methods, 6, batch)
        }
        for batch in (1, 3, 16)
    ]
    assert len(texts[0]) == len(methods) * len(DOCUMENT.questions)
    assert texts[0] == texts[1] == texts[2]


def test_an_evaluated_answer_is_the_answer_of_a_single_run(model, source):
    method = winnow.method("adakv", 32)
    trials = list(evaluate(model, source.tokenizer, DOCUMENT.text, DOCUMENT.questions[:2], [method], 10))
    for index, trial in enumerate(trials):
        single = finish(model, source.tokenizer, read_with_question(model, method, encoded(source, index)), 10)
        assert trial.text == single.text
        assert trial.stats.slots == single.stats.slots


def test_models_with_sliding_layers_are_evaluated_one_by_one():
    model = build("gemma2")
    model.set_attn_implementation("winnow")
    ids = prompt(length=60)
    method = winnow.method("adakv", 12, window=4)
    own = read_with_question(model, method, ids)
    dense = SharedPrefill(model, [ids]).dense(ids)
    ours = dense.compress(method).cache
    assert not can_be_joined(ours)
    expected = list(decode(model, own.cache, own.logits, 8, frozenset()))
    assert decode_batch(model, [Row(ours, dense.logits)], 8, frozenset())[0].tokens == expected


def test_scores_sum_up_their_trials(model, source):
    trials = list(
        evaluate(model, source.tokenizer, DOCUMENT.text, DOCUMENT.questions, grid(["full", "h2o"], [16, 32]), 4)
    )
    scores = summarise(trials)
    assert [(score.method, score.budget) for score in scores] == [
        ("full", "everything"),
        ("h2o", "16"),
        ("h2o", "32"),
    ]
    for score in scores:
        own = [t for t in trials if (t.method.name, str(t.method.budget)) == (score.method, score.budget)]
        assert score.questions == len(own) == len(DOCUMENT.questions)
        assert score.accuracy == pytest.approx(sum(t.right for t in own) / len(own))
        assert set(score.accuracy_by_kind) == {question.kind for question in DOCUMENT.questions}
        assert 0 < score.compress_share < 1
    assert [score.mean_slots for score in scores[1:]] == [16, 32]
    assert scores[1].held_bytes < scores[2].held_bytes < scores[0].held_bytes


def test_remembered_scoring_still_counts_as_time_spent(model, source):
    dense = SharedPrefill(model, [encoded(source)]).dense(encoded(source))
    first, second = (dense.compress(winnow.method("h2o", budget)).seconds for budget in (16, 32))
    assert second > first / 4


def test_no_questions_are_no_work(model, source):
    assert list(evaluate(model, source.tokenizer, DOCUMENT.text, [], grid(["full"], [16]))) == []
    assert summarise([]) == []


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


def test_chat_templates_are_used_where_there_are_any(source):
    tokenizer = open_model(MODEL_PATH).tokenizer
    plain = encode_prompt(tokenizer, "The lemon is red.", "What is red?")
    assert torch.equal(
        plain, tokenizer(format_prompt("The lemon is red.", "What is red?"), return_tensors="pt").input_ids
    )
    tokenizer.chat_template = "{% for m in messages %}<s> {{ m.content }}{% endfor %} answer :"
    words = tokenizer.decode(encode_prompt(tokenizer, "The lemon is red.", "What is red?")[0])
    assert words == "<s> the lemon is red. what is red? answer :"


def test_facts_are_found_in_the_document(source):
    document = (
        "The favorite fruit of Nora is mango. Between Nora and Walter, the taller one is Nora. "
        "Rain fell. The favorite fruit of Walter is mango."
    )
    question = Question(
        "reasoning",
        "What is the favorite fruit of the taller one of Walter and Nora?",
        "nora, whose favorite fruit is mango",
    )
    spans = fact_sentences(document, question)
    assert [document[start:stop].strip() for start, stop in spans] == [
        "Between Nora and Walter, the taller one is Nora.",
        "The favorite fruit of Nora is mango.",
    ]
    (first, second) = fact_tokens(source.tokenizer, document, question)
    ids = encode_prompt(source.tokenizer, document, question.text)[0]
    assert source.tokenizer.decode(ids[slice(*first)]) == "the favorite fruit of nora is mango."
    assert source.tokenizer.decode(ids[slice(*second)]).endswith("the taller one is nora.")
