"""Facts hidden in generated prose."""

from __future__ import annotations

import hashlib
import json

import pytest

from winnow.tasks.benchmark import BenchmarkError, Request
from winnow.tasks.facts import FACTS, MAX_NEW_TOKENS
from winnow.tasks.facts.documents import fact_document


def words(text: str) -> int:
    return len(text.split())


@pytest.mark.parametrize(("lengths", "examples"), [((300,), 8), ((270, 700), 3)])
def test_every_answer_stands_in_its_context_once_and_prompts_are_as_long_as_asked(lengths, examples):
    (task,) = FACTS.load(Request(words, lengths=lengths, examples=examples))
    assert len(task.examples) == examples * len(lengths)
    assert len({example.name for example in task.examples}) == len(task.examples)
    for example in task.examples:
        assert example.context.count(example.answers[0]) == 1
        assert example.answers[0] not in example.question
        whole = words(example.context + example.question) + MAX_NEW_TOKENS
        assert example.facts["length"] - 40 <= whole <= example.facts["length"]


def test_more_examples_begin_with_fewer():
    few, many = (FACTS.load(Request(words, lengths=(300,), examples=count))[0].examples for count in (5, 20))
    assert many[:5] == few


def test_seeds_have_other_documents():
    one, other = (FACTS.load(Request(words, lengths=(300,), examples=1, seed=seed))[0] for seed in (0, 1))
    assert one.examples[0].context != other.examples[0].context


def test_prompts_too_short_for_six_facts_are_refused():
    with pytest.raises(BenchmarkError, match="do not fit into 100 tokens"):
        FACTS.load(Request(words, lengths=(100,)))


def test_a_task_that_there_is_not_is_refused():
    with pytest.raises(BenchmarkError, match="facts has no task 'fact'"):
        FACTS.load(Request(words, tasks=("fact",)))


def test_documents_of_a_seed_stay_what_they_are():
    """Results of runs are of these texts."""
    made = [fact_document(seed, 300) for seed in range(3)]
    told = [[each.text, [[q.kind, q.text, q.answer] for q in each.questions]] for each in made]
    assert hashlib.sha256(json.dumps(told).encode()).hexdigest()[:16] == "ed972a4b58df03e9"
