"""BABILong's examples: a reader who has only the text answers as the example does."""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections import Counter
from functools import cache
from types import SimpleNamespace

import pytest
from hypothesis import example as drawn
from hypothesis import given, settings
from hypothesis import strategies as st

from support import babi_oracle
from support.counting import count_bytes, count_words
from winnow.metrics.base import Expected
from winnow.metrics.registry import metric
from winnow.tasks.babilong import BABILONG
from winnow.tasks.babilong.questions import _where_was_something
from winnow.tasks.benchmark import BenchmarkError, Request
from winnow.tasks.haystack import ruler_files

ORIGINALS = {"qa1": "52f6ea3d", "qa2": "1b7da15c", "qa3": "f218da68", "qa4": "b3e23a86", "qa5": "1591c1b9"}
"""Starts of the SHA-256 of instruction, examples and closing words, as get_formatted_input joins them."""

QUESTIONS = {
    "qa1": "Where is P?",
    "qa2": "Where is the T?",
    "qa3": "Where was the T before the R?",
    "qa4": "What is D of the R?|What is the R D of?",
    "qa5": "What did P give to P?|Who received the T?|Who did P give the T to?|Who gave the T to P?|Who gave the T?",
}
FACTS = {"qa1": (2, 10), "qa2": (2, 30), "qa3": (4, 104), "qa4": (2, 2), "qa5": (4, 32)}


@pytest.fixture(autouse=True)
def _no_package(monkeypatch):
    monkeypatch.setattr(ruler_files, "find_spec", lambda name: None)


@cache
def examples(task, length=0, count=40, seed=0):
    [loaded] = BABILONG.load(Request(count_words, (task,), count, (length,), seed))
    assert (loaded.benchmark, loaded.name, loaded.judging[:2]) == ("babilong", task, ("babilong", 20))
    return loaded.examples


def read(example):
    """Instructions, facts of the text, the whole text and the question."""
    before, rest = example.context.split("\n\n<context>\n")
    text, end = rest.split("\n</context>\n\n")
    assert end == ""
    asked = re.fullmatch(r"Question: (.*)", example.question)
    return before, babi_oracle.facts_in(text), text, asked[1]


@pytest.mark.parametrize("task", BABILONG.tasks)
def test_facts_alone_answer_the_question(task):
    sizes, forms = Counter(), Counter()
    for example in examples(task):
        _, facts, text, question = read(example)
        assert text == " ".join(facts)
        assert babi_oracle.answers(facts, question) == set(example.answers)
        form = re.sub(babi_oracle.PERSON, "P", re.sub(babi_oracle.THING, "T", re.sub(babi_oracle.ROOM, "R", question)))
        forms[re.sub("north|south|east|west", "D", form)] += 1
        sizes[len(facts)] += 1
    assert set(forms) == set(QUESTIONS[task].split("|"))
    assert FACTS[task][0] <= min(sizes) <= max(sizes) <= FACTS[task][1]
    assert all(size % 2 == 0 for size in sizes)
    assert len(sizes) >= min(4, FACTS[task][1] // 2)


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from(list(BABILONG.tasks)),
    st.integers(700, 3000),
    st.integers(0, 10**9),
    st.sampled_from([count_words, count_bytes]),
)
@drawn("qa3", 700, 0, count_bytes)
def test_text_around_the_facts_fills_the_length_and_changes_no_answer(task, length, seed, counter):
    [loaded] = BABILONG.load(Request(counter, (task,), 1, (length,), seed))
    [example] = loaded.examples
    size = counter(example.context + example.question + example.answer_prefix) + 20
    # No sentence of the prose has 60 tokens.
    assert length - 60 < size <= length
    _, facts, text, question = read(example)
    assert babi_oracle.answers(facts, question) == set(example.answers)
    # Facts that fill the length by themselves, which was checked above, leave no room for a sentence.
    assert len(text) > len(" ".join(facts)) or text == " ".join(facts)
    assert example.facts == {"length": length, "haystack": "prose"}


def test_instructions_are_the_originals():
    """Digests of the texts of babilong/prompts.py, which everything before the context is made of."""
    told = {task: read(examples(task)[0])[0] for task in BABILONG.tasks}
    assert told["qa1"].startswith("I will give you context with the facts about positions of different persons hidden")
    assert told["qa4"].endswith("only one word - location. Do not write anything else after that.")
    assert {task: hashlib.sha256(text.encode()).hexdigest()[:8] for task, text in told.items()} == ORIGINALS


def test_labels_of_the_question_are_no_choices_and_the_right_one_is():
    for task in BABILONG.tasks:
        labels = (
            {*"Bill Fred Jeff Mary apple football milk".split()} if task == "qa5" else {*babi_oracle.ROOM.split("|")}
        )
        for example in examples(task):
            asked = {label for label in labels if label in example.question}
            assert set(example.choices) == labels - asked
            expected = Expected(example.answers, example.choices)
            right = metric("babilong").score
            assert right(f"It is {example.answers[0].upper()}. Or {example.choices[0]}.", expected) == 1
            assert right(" and ".join([*asked, *example.answers]), expected) == 1
            assert right(f"{example.choices[0]} or {example.choices[1]}", expected) == 0


def test_facts_are_spread_over_the_text():
    shares = []
    for example in examples("qa1", 3000, 20):
        _, facts, text, _ = read(example)
        shares += [text.index(fact) / len(text) for fact in facts]
    assert min(shares) < 0.1
    assert max(shares) > 0.9
    assert 0.4 < sum(shares) / len(shares) < 0.6


def test_an_example_does_not_depend_on_what_else_is_asked_for():
    for task in BABILONG.tasks:
        [more] = BABILONG.load(Request(count_words, (task,), 4, (0, 900, 1500)))
        assert more.examples[8:11] == examples(task, 1500, 3)
        assert len({example.context for example in more.examples}) == 12
        assert examples(task, 1500, 3, seed=1)[0].context != examples(task, 1500, 3)[0].context


def test_examples_are_the_same_on_every_machine():
    """A digest that was written down: of all prompts and answers for one seed."""
    told = [
        [task, each.context, each.question, each.answers] for task in BABILONG.tasks for each in examples(task, 1500, 3)
    ]
    assert hashlib.sha256(json.dumps(told).encode()).hexdigest()[:16] == "3ebc3110674ca14b"


def test_a_length_without_room_is_told():
    with pytest.raises(BenchmarkError, match=r"BABILong's qa1.* takes at least .*, not 100"):
        BABILONG.load(Request(count_words, ("qa1",), 1, (100,)))
    with pytest.raises(BenchmarkError, match="cannot have -1 tokens"):
        BABILONG.load(Request(count_words, ("qa1",), 1, (-1,)))


def test_a_room_that_something_was_in_twice_is_asked_about_by_its_last_time():
    path = ["garden", "office", "kitchen", "office", "bedroom"]
    asked = {
        _where_was_something(SimpleNamespace(rng=random.Random(seed), told_paths={"milk": path})) for seed in range(60)
    }
    assert asked == {
        ("Where was the milk before the kitchen?", "office"),
        ("Where was the milk before the office?", "kitchen"),
        ("Where was the milk before the bedroom?", "office"),
    }
