"""RULER's examples: their form is the original's, and what they ask for is in them."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.counting import count_bytes, count_words
from support.ruler_forms import FORMS, NOISE, NUMBER, UUID, WORD, needle
from winnow.tasks.benchmark import BenchmarkError, Request
from winnow.tasks.haystack import ruler_files
from winnow.tasks.ruler import RULER, words

NEEDLES = [name for name in RULER.tasks if name.startswith("niah")]
MADE_UP = [name for name in RULER.tasks if not name.startswith("qa")]


@pytest.fixture(autouse=True)
def _no_package(monkeypatch):
    monkeypatch.setattr(ruler_files, "find_spec", lambda name: None)


@cache
def examples(task, length=4096, seed=0, count=3, counter=count_words):
    [loaded] = RULER.load(Request(counter, (task,), count, (length,), seed))
    assert loaded.benchmark == "ruler"
    assert loaded.name == task
    return loaded.examples


def prompt(example):
    return example.context + example.question + example.answer_prefix


def parts(task, example):
    found = FORMS[task].fullmatch(prompt(example))
    assert found, prompt(example)[:300] + " … " + prompt(example)[-300:]
    return found


def test_all_thirteen_tasks_with_rulers_judging():
    assert len(RULER.tasks) == 13
    loaded = RULER.load(Request(count_words, tuple(MADE_UP), 1, (2000,)))
    assert [task.name for task in loaded] == MADE_UP
    tokens = {task.name: task.judging.max_new_tokens for task in loaded}
    assert tokens == {**dict.fromkeys(NEEDLES, 128), "vt": 30, "cwe": 120, "fwe": 50}
    assert {task.judging.metric for task in loaded} == {"contains_all"}


@pytest.mark.parametrize("task", MADE_UP)
@pytest.mark.parametrize("length", [1024, 4096])
def test_prompts_have_the_originals_form_and_the_peer_librarys_parts(task, length):
    for example in examples(task, length):
        parts(task, example)
        assert example.context.endswith("\n")
        assert example.question.startswith(("What ", "Question: "))
        assert example.question.endswith("? " if task != "vt" else ". ")
        assert example.answer_prefix.startswith(("The special magic ", "Answer: "))
        assert example.facts["length"] == length


PEER = {
    "niah": (r"What (?:is|are all) the special magic", "The special magic"),
    "vt": ("Question: Find all variables that are assigned the value", "Answer:"),
    "cwe": (r"Question: What are the 10 most common words in the above list\?", "Answer:"),
    "fwe": (r"Question: Do not provide any explanation\.", "Answer:"),
}
"""Beginnings of questions and of answers by which kvpress divides RULER's prompts."""


@pytest.mark.parametrize("task", MADE_UP)
def test_the_peer_library_would_divide_prompts_at_the_same_places(task):
    question, answer = PEER[task.split("_")[0]]
    for example in examples(task):
        text = prompt(example)
        start = [found.start() for found in re.finditer(question, text)][-1]
        end = start + re.search(answer, text[start:]).start()
        assert (text[:start], text[start:end], text[end:]) == (
            example.context,
            example.question,
            example.answer_prefix,
        )


NEEDLE_COUNTS = {
    "niah_single_1": (1, 1),
    "niah_single_2": (1, 1),
    "niah_single_3": (1, 1),
    "niah_multikey_1": (4, 1),
    "niah_multivalue": (4, 4),
    "niah_multiquery": (4, 4),
}


@pytest.mark.parametrize("task", NEEDLES)
def test_the_values_of_the_keys_that_are_asked_for_are_in_the_text_once_each(task):
    kind = "uuids" if task in ("niah_single_3", "niah_multikey_3") else "numbers"
    key, value = (UUID if task == "niah_multikey_3" else WORD), (UUID if kind == "uuids" else NUMBER)
    pattern = needle(kind, f"({key})", f"({value})")
    for example in examples(task):
        found = parts(task, example)
        told = re.findall(pattern, found["context"])
        asked = re.split(", and |, ", found["query"])
        assert Counter(value for key, value in told if key in asked) == Counter(example.answers)
        assert example.context.count("One of the special magic") == len(told)
        if task in NEEDLE_COUNTS:
            assert (len(told), len(example.answers)) == NEEDLE_COUNTS[task]
        else:
            assert len(told) > 30
            assert len(example.answers) == 1
        assert sum(key in asked for key, _ in told) == len(example.answers)


@pytest.mark.parametrize("task", ["niah_single_1", "niah_single_2", "niah_multikey_1", "niah_multikey_2"])
def test_depth_says_where_the_needle_is(task):
    for example in examples(task, 4096, count=6):
        context = parts(task, example)["context"]
        place = context.index(example.answers[0]) / len(context)
        assert abs(100 * place - example.facts["depth"]) < 5
    assert len({example.facts["depth"] for example in examples(task, 4096, count=6)}) > 3


def test_noise_is_all_that_is_around_a_needle_and_a_chain():
    [example] = examples("niah_single_1", count=1)
    lines = parts("niah_single_1", example)["context"].split("\n")
    assert sum(bool(re.fullmatch(NOISE, line)) for line in lines) == len(lines) - 1 > 100


@pytest.mark.parametrize("length", [1024, 4096])
def test_variables_follow_from_the_assignments(length):
    for example in examples("vt", length):
        found = parts("vt", example)
        for context, value, answers in (
            (found["context"], found["query"], set(example.answers)),
            (
                found["shot"],
                found["shown"],
                set(re.findall(r"[A-Z]{3}(?= |\n)", example.context.split("are:  ")[1])[:5]),
            ),
        ):
            held = {}
            for name, number, other in re.findall(r"VAR ([A-Z]+) = (?:(\d+)|VAR ([A-Z]+))", context):
                held[name] = number or held[other]
            assert {name for name, number in held.items() if number == value} == answers
            assert len(answers) == 5
        assert {len(name) for name in example.answers} == {5}
        assert found["context"].count("The grass") > found["shot"].count("The grass") >= 5
        assert found["shot"].count("The grass") % 5 == 0


@pytest.mark.parametrize(("length", "often", "shot"), [(4096, (30, 3), (10, 3, 40)), (2000, (6, 1), (3, 1, 20))])
def test_common_words_stand_as_often_as_the_paper_says(length, often, shot):
    for example in examples("cwe", length):
        found = parts("cwe", example)
        counted = Counter(listed(found["context"]))
        assert {counted.pop(word) for word in example.answers} == {often[0]}
        assert set(counted.values()) == {often[1]}
        assert len(counted) > 20
        shown = Counter(listed(found["shot"]))
        assert {shown.pop(word) for word in listed(found["solved"])} == {shot[0]}
        assert set(shown.values()) == {shot[1]}
        assert len(shown) == shot[2] - 10


def listed(text):
    """Words of "1. word 2. word"; some have a blank inside."""
    pieces = re.split(r"(?:^| )\d+\. ", text)[1:]
    assert len(pieces) == int(re.findall(r"(?:^| )(\d+)\. ", text)[-1])
    return pieces


def test_frequencies_fall_off_with_the_square_of_the_rank():
    for example in examples("fwe", 4096):
        counted = Counter(parts("fwe", example)["context"].split(" "))
        ranked = [times for _, times in counted.most_common()]
        assert counted.most_common(1)[0][0] == "..."
        assert tuple(word for word, _ in counted.most_common(4)[1:]) == example.answers
        assert ranked[3] > ranked[4]
        assert all(abs(times - ranked[0] / rank**2) < 1.01 for rank, times in enumerate(ranked, start=1))
        assert len(counted) <= 4096 // 50


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(MADE_UP),
    st.integers(1100, 3000),
    st.integers(0, 10**9),
    st.sampled_from([count_words, count_bytes]),
)
def test_prompt_and_answer_fit_and_hold_all_answers(task, length, seed, counter):
    [loaded] = RULER.load(Request(counter, (task,), 1, (length,), seed))
    [example] = loaded.examples
    size = counter(prompt(example)) + loaded.judging.max_new_tokens
    # No piece of any task has 150 tokens.
    assert length - 150 < size <= length
    parts(task, example)
    assert all(answer in example.context for answer in example.answers)
    assert len(set(example.answers)) == len(example.answers)


@pytest.mark.parametrize("task", MADE_UP)
def test_an_example_does_not_depend_on_what_else_is_asked_for(task):
    alone = examples(task, 1500, count=2)
    [more] = RULER.load(Request(count_words, (task,), 3, (1200, 1500)))
    assert more.examples[3:5] == alone
    assert len({prompt(example) for example in more.examples}) == 6
    assert examples(task, 1500, seed=1, count=2)[0].context != alone[0].context


def test_examples_are_the_same_on_every_machine():
    """A digest that was written down: of all prompts and answers for one seed."""
    told = [[task, prompt(each), each.answers] for task in MADE_UP for each in examples(task, 1500, count=2)]
    assert hashlib.sha256(json.dumps(told).encode()).hexdigest()[:16] == "41b74084448f61d2"


def test_what_is_too_short_or_unknown_is_told():
    with pytest.raises(BenchmarkError, match=r"RULER's cwe.* takes at least .*, not 300"):
        RULER.load(Request(count_words, ("cwe",), 1, (300,)))
    with pytest.raises(BenchmarkError, match="niah_single_1"):
        RULER.load(Request(count_words, ("niah_single1",), 1))
    with pytest.raises(BenchmarkError, match="At least one example"):
        RULER.load(Request(count_words, ("vt",), 0))


def test_words_come_from_a_package_that_may_be_missing(monkeypatch):
    def missing(name):
        raise ModuleNotFoundError(name)

    words.nouns.cache_clear()
    monkeypatch.setattr(words.resources, "files", missing)
    with pytest.raises(BenchmarkError, match=r"winnow-kv\[eval\]"):
        RULER.load(Request(count_words, ("niah_single_1",), 1))
