"""A GPU that runs out of memory, played by what raises torch's error: fewer questions go side by side."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch

from support.small_runs import recipe, small_task
from winnow.estimate.executors.base import Item
from winnow.evaluate.shared import SharedPrefill
from winnow.runs import reading
from winnow.runs.rows import Row
from winnow.runs.worker import RunRecipe
from winnow.tasks.example import Judging

pytestmark = pytest.mark.usefixtures("one_thread")
METHODS = ("full", "snapkv @ 25%")


def made_for(model: Any, seen: bool) -> RunRecipe:
    """Several questions about either of two documents."""
    return recipe(model, [small_task(documents=2, judging=Judging("contains_any", 3))], seen, METHODS)


def rows_of(made: RunRecipe, model: Any, tokenizer: Any) -> list[Row]:
    worker = made.worker(model, tokenizer)
    return [row for group in range(len(made.groups)) for method in range(2) for row in worker(Item(method, group))]


@pytest.fixture(scope="module")
def plenty(model, tokenizer) -> dict[bool, list[tuple[object, ...]]]:
    """Rows where memory is never short, by whether the question is seen."""
    return {seen: said(rows_of(made_for(model, seen), model, tokenizer)) for seen in (True, False)}


def said(rows: list[Row]) -> list[tuple[object, ...]]:
    """Whatever of rows is no time."""
    return [(row.cell, row.prediction, row.scores, row.held_bytes, row.prompt_tokens, row.kept) for row in rows]


def limited(monkeypatch: pytest.MonkeyPatch, name: str, most: int, size: Callable[..., int]) -> list[int]:
    """Has a function of `reading` run out of memory above a size; the sizes that it was called with."""
    original, sizes = getattr(reading, name), []

    def stand_in(*given: Any, **named: Any) -> Any:
        sizes.append(size(*given))
        if sizes[-1] > most:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return original(*given, **named)

    monkeypatch.setattr(reading, name, stand_in)
    return sizes


def decoded(monkeypatch: pytest.MonkeyPatch, seen: bool, most: int) -> list[int]:
    """Decoding with room for so many rows; the rows of every attempt."""
    if seen:
        return limited(monkeypatch, "decode_rows", most, lambda model, rows, *_: len(rows))
    return limited(monkeypatch, "answers_after", most, lambda model, contexts, questions, *_: len(questions))


@pytest.mark.parametrize("seen", [True, False])
@pytest.mark.parametrize("most", [1, 2])
def test_a_run_goes_on_with_fewer_questions_side_by_side(model, tokenizer, plenty, monkeypatch, seen, most):
    made = made_for(model, seen)
    asked = len(made.groups[0].examples)
    assert asked > 2
    tried = decoded(monkeypatch, seen, most)
    with pytest.warns(RuntimeWarning) as told:
        found = rows_of(made, model, tokenizer)
    assert said(found) == plenty[seen]
    steps = [asked]
    while steps[-1] > most:
        steps.append(steps[-1] // 2)
    assert [str(each.message) for each in told] == [
        f"The GPU has too little memory for {before} questions side by side; continuing with {after}."
        for before, after in pairwise(steps)
    ]
    assert tried[: len(steps)] == steps
    assert max(tried[len(steps) :]) == steps[-1]  # and no more is tried in the next group


def test_prompts_that_do_not_fit_are_let_go_before_fewer_are_read(model, tokenizer, plenty, monkeypatch):
    made, alive, original = made_for(model, seen=True), set(), SharedPrefill.dense

    def dense(self: Any, prompt: torch.Tensor) -> Any:
        if len(alive) == 2:
            raise torch.OutOfMemoryError
        found = original(self, prompt)
        alive.add(id(found))
        weakref.finalize(found, alive.discard, id(found))
        return found

    monkeypatch.setattr(SharedPrefill, "dense", dense)
    with pytest.warns(RuntimeWarning, match="continuing with"):
        assert said(rows_of(made, model, tokenizer)) == plenty[True]


def test_where_memory_is_short_one_part_of_a_group_is_held_at_a_time(model, tokenizer, monkeypatch):
    made, alive, most, original = made_for(model, seen=True), set(), [], reading._Seen.__init__

    def begin(self: Any, *given: Any) -> None:
        alive.add(id(self))
        weakref.finalize(self, alive.discard, id(self))
        original(self, *given)
        most.append(len(alive))

    monkeypatch.setattr(reading._Seen, "__init__", begin)
    decoded(monkeypatch, seen=True, most=1)
    with pytest.warns(RuntimeWarning, match="continuing with"):
        rows_of(made, model, tokenizer)
    assert len(most) > 8
    assert max(most) == 1


@pytest.mark.parametrize("seen", [True, False])
def test_one_question_that_does_not_fit_ends_the_run(model, tokenizer, monkeypatch, seen):
    decoded(monkeypatch, seen, 0)
    with warnings.catch_warnings(), pytest.raises(torch.OutOfMemoryError):
        warnings.simplefilter("ignore")
        rows_of(made_for(model, seen), model, tokenizer)


def test_the_only_question_about_a_text_ends_the_run_too(model, tokenizer, monkeypatch):
    decoded(monkeypatch, seen=True, most=0)
    made = made_for(model, seen=True)
    one = replace(made.groups[0], examples=made.groups[0].examples[:1])
    assert made.batch > 1
    with warnings.catch_warnings(), pytest.raises(torch.OutOfMemoryError):
        warnings.simplefilter("error")
        rows_of(replace(made, groups=(one,)), model, tokenizer)


def test_other_errors_are_no_lack_of_memory(model, tokenizer, monkeypatch):
    def broken(*_: Any) -> None:
        raise RuntimeError("something else")

    monkeypatch.setattr(reading, "decode_rows", broken)
    with pytest.raises(RuntimeError, match="something else"):
        rows_of(made_for(model, seen=True), model, tokenizer)


def test_a_batch_smaller_than_a_group_reads_it_in_parts(model, tokenizer, plenty):
    made = replace(made_for(model, seen=True), batch=2)
    assert said(rows_of(made, model, tokenizer)) == plenty[True]
