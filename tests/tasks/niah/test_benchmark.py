"""Needles in a haystack: where they are, what is asked, and that only they answer."""

from __future__ import annotations

import hashlib
import json
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.counting import count_bytes, count_words
from winnow.metrics.base import Expected
from winnow.metrics.registry import metric
from winnow.tasks.benchmark import BenchmarkError, Request
from winnow.tasks.haystack import ruler_files
from winnow.tasks.niah import NIAH
from winnow.tasks.niah.benchmark import DEPTHS, hidden
from winnow.tasks.niah.needles import multi, reasoning, single

SOURCES = {"single": single, "multi": multi, "reasoning": reasoning}


@pytest.fixture(autouse=True)
def _no_package(monkeypatch):
    monkeypatch.setattr(ruler_files, "find_spec", lambda name: None)


@cache
def examples(task, lengths=(1500,), count=None, seed=0, counter=count_words):
    [loaded] = NIAH.load(Request(counter, (task,), count, lengths, seed))
    assert loaded.judging.max_new_tokens == 50
    return loaded.examples


def prompt(example):
    return example.context + example.question + example.answer_prefix


def text_of(example):
    start, end = "This is a very long story book: <book> ", " </book>.\n"
    assert example.context.startswith(start)
    assert example.context.endswith(end)
    return example.context[len(start) : -len(end)]


def test_the_published_needles_come_first():
    [one] = examples("single", count=1)
    assert (
        "The best thing to do in San Francisco is eat a sandwich and sit in Dolores Park on a sunny day." in one.context
    )
    question = "What is the best thing to do in San Francisco?"
    assert one.question + one.answer_prefix == f" Based on the content of the book, Question: {question}\nAnswer:"
    [three] = examples("multi", count=1)
    assert [
        f"{name} one of the secret ingredients needed to build the perfect pizza." in three.context
        for name in ("Figs are", "Prosciutto is", "Goat cheese is")
    ] == [True] * 3
    younger, older = (examples("reasoning", count=12)[index] for index in (0, 11))
    for example, word, answer in ((younger, "younger", "basketball"), (older, "older", "Chaoyang Park")):
        assert "John is 12 years old. Mary is 13 years old. Mary's favorite thing is to" in example.context
        assert f"of the {word} one between John and Mary?" in example.question
        assert example.answers == (answer,)


@pytest.mark.parametrize("task", NIAH.tasks)
def test_the_grid_has_every_depth_of_every_length_with_the_same_needle(task):
    found = examples(task, (800, 1500))
    assert [(each.facts["length"], each.facts["depth"]) for each in found] == [
        (length, depth) for length in (800, 1500) for depth in DEPTHS
    ]
    assert len({each.question for each in found}) == 1
    assert sorted(DEPTHS) == list(range(0, 101, 10))
    assert len({each.name for each in found}) == len(found)
    more = examples(task, (1500,), 22)
    assert more[:11] == found[11:]
    assert more[11].question != more[0].question


@pytest.mark.parametrize("task", ["single", "reasoning"])
def test_a_needle_is_at_its_depth_between_sentences(task):
    for example in examples(task):
        [needle] = SOURCES[task](0, 0).sentences
        text = text_of(example)
        assert text.count(needle) == 1
        before, after = text.split(needle)
        assert before == "" or before.endswith(". ")
        assert after == "" or after.startswith(" ")
        hay = len(before) + len(after)
        longest = max(map(len, text.split(". "))) + 2
        assert -longest < len(before) - hay * example.facts["depth"] / 100 <= 2


def test_several_needles_stand_evenly_between_the_depth_and_the_end():
    sentences = [f"Sentence {number:02}." for number in range(60)]
    told = hidden(("One.", "Two.", "Three."), 40, sentences).split(". ")
    assert [told.index(each) for each in ("One", "Two", "Three")] == [24, 24 + 12 + 1, 24 + 24 + 2]
    assert hidden(("One.", "Two."), 100, sentences[:1]) == "Sentence 00. One. Two."
    assert hidden(("One.",), 0, []) == "One."


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(list(NIAH.tasks)),
    st.integers(250, 2500),
    st.integers(0, 10**9),
    st.integers(1, 14),
    st.sampled_from([count_words, count_bytes]),
)
def test_prompt_and_answer_fit_and_hold_each_needle_once(task, length, seed, count, counter):
    example = NIAH.load(Request(counter, (task,), count, (length,), seed))[0].examples[-1]
    # No sentence of the prose has 60 tokens.
    assert length - 60 < counter(prompt(example)) + 50 <= length
    needle = SOURCES[task](seed, (count - 1) // len(DEPTHS))
    text = text_of(example)
    assert [text.count(sentence) for sentence in needle.sentences] == [1] * len(needle.sentences)
    for sentence in needle.sentences:
        text = text.replace(sentence, "")
    assert "best thing" not in text
    assert "ingredient" not in text
    assert "favorite" not in text


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(list(NIAH.tasks)), st.integers(0, 10**9), st.integers(0, 100))
def test_what_the_needle_says_is_right_and_the_wrong_liking_is_not(task, seed, number):
    needle = SOURCES[task](seed, number)
    judged = metric("classification" if task == "reasoning" else "contains_all").score
    expected = Expected(needle.answers, needle.choices)
    if task != "reasoning":
        assert judged(" ".join(needle.sentences), expected) == 1
        assert judged(needle.question, expected) == 0
        return
    [told] = needle.sentences
    ages = {part.split()[0]: int(part.split()[2]) for part in told.split(". ") if "years old" in part}
    likes = {part.split("'")[0]: part for part in told.split(". ") if "favorite" in part}
    pick = max if "older" in needle.question else min
    right = pick(ages, key=ages.__getitem__)
    [other] = ages.keys() - {right}
    assert judged(likes[right], expected) == 1
    assert judged(likes[other], expected) == 0
    assert judged(told, expected) == 0.5
    assert right in needle.question
    assert other in needle.question


def test_another_seed_has_other_needles_and_another_text():
    for task in NIAH.tasks:
        one, other = examples(task, count=1)[0], examples(task, count=1, seed=1)[0]
        assert one.question != other.question
        assert text_of(one)[:200] != text_of(other)[:200]


def test_examples_are_the_same_on_every_machine():
    """A digest that was written down: of all prompts and answers for two seeds."""
    told = [
        [task, prompt(each), each.answers]
        for task in NIAH.tasks
        for seed in (0, 1)
        for each in examples(task, seed=seed)
    ]
    assert hashlib.sha256(json.dumps(told).encode()).hexdigest()[:16] == "c11c4b396c59385a"


def test_a_length_without_room_is_told():
    with pytest.raises(BenchmarkError, match=r"needles of multi.* takes at least .*, not 100"):
        NIAH.load(Request(count_words, ("multi",), 1, (100,)))
