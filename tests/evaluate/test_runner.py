"""Grids of methods and budgets: the answers of single runs, whatever the batch, and scores of trials."""

from __future__ import annotations

from dataclasses import replace

import pytest

import winnow
from support.asked import DOCUMENT, encoded
from winnow.evaluate import evaluate, grid, score_trials
from winnow.evaluate.answering import finish, read_with_question

pytestmark = pytest.mark.usefixtures("one_thread")


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


def test_trials_have_the_cache_as_it_was_before_the_answer(model, source):
    """One that is answered from itself: a batch of several has a cache of its own."""
    method = winnow.method("adakv", 32)
    for trial in evaluate(model, source.tokenizer, DOCUMENT.text, DOCUMENT.questions, [method], 4, batch=1):
        assert trial.stats.tail_tokens == [0]


def test_scores_sum_up_their_trials(model, source):
    trials = list(
        evaluate(model, source.tokenizer, DOCUMENT.text, DOCUMENT.questions, grid(["full", "h2o"], [16, 32]), 4)
    )
    scores = score_trials(trials)
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


def test_kinds_of_questions_have_means_of_their_own(model, source):
    trials = evaluate(model, source.tokenizer, DOCUMENT.text, DOCUMENT.questions, [winnow.method("adakv", 32)], 1)
    (score,) = score_trials([replace(trial, score=1.0) for trial in trials])
    assert len(score.accuracy_by_kind) > 1
    assert set(score.accuracy_by_kind.values()) == {1.0}


def test_no_questions_are_no_work(model, source):
    assert list(evaluate(model, source.tokenizer, DOCUMENT.text, [], grid(["full"], [16]))) == []
    assert score_trials([]) == []
