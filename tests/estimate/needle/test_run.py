"""Runs with their journal, and the table that they make."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from support.needles import small_plan
from winnow.bundled import HEADS_PATH
from winnow.estimate.errors import JournalError, NeedleError
from winnow.estimate.journal import Journal
from winnow.estimate.needle import run as running
from winnow.estimate.needle.generate import answer
from winnow.estimate.needle.merging import merged_halves, needle_config
from winnow.estimate.needle.plan import NeedlePlan
from winnow.estimate.needle.run import Outcome, check_hopeful, mean_scores, right_halves, run_needles
from winnow.estimate.needle.settings import NeedleKind
from winnow.estimate.split_half import SplitHalf
from winnow.heads import HeadScores

pytestmark = pytest.mark.usefixtures("one_thread")


def test_a_resumed_estimate_is_that_of_an_uninterrupted_one(model, tmp_path, monkeypatch):
    plan = small_plan(NeedleKind.R2)
    whole = list(run_needles(model, plan, Journal.open(tmp_path / "whole.jsonl", plan.config())))
    path = tmp_path / "parts.jsonl"
    runs = run_needles(model, plan, Journal.open(path, plan.config()))
    for _ in range(5):
        next(runs)
    runs.close()
    with path.open("ab") as file:  # a line that was being written when the machine went down
        file.write(b'{"kind":"r2","example":1,"len')
    made = []
    monkeypatch.setattr(running, "answer", lambda *args: made.append(1) or answer(*args))
    resumed = list(run_needles(model, plan, Journal.open(path, plan.config())))
    assert 0 < len(made) < len(set(plan.cells))
    assert [one.cell for one in resumed] == [one.cell for one in whole]
    assert sorted(one.cell for one in whole) == plan.cells
    assert mean_scores(plan, resumed) == mean_scores(plan, whole)
    made.clear()
    assert mean_scores(plan, list(run_needles(model, plan, Journal.open(path, plan.config())))) == mean_scores(
        plan, whole
    )
    assert not made
    lines = path.read_text().splitlines()
    assert len(lines) == 1 + len(plan.cells)
    fields = {"kind", "example", "length", "depth", "prompt_tokens", "answer", "scores"}
    assert set(json.loads(lines[1])) == {*fields, "hash"}


def test_only_right_runs_count(model, tmp_path):
    plan = small_plan(NeedleKind.ER, (0,), depths=1)
    first, second = plan.examples
    plan.examples = (first, replace(second, answer="nothing like it"))
    outcomes = list(run_needles(model, plan, Journal.open(tmp_path / "j.jsonl", {})))
    assert [outcome.scores is None for outcome in outcomes] == [False, True]
    table = mean_scores(plan, outcomes)
    assert (table.samples, table.heads, table.method, table.shape) == (1, "query", "headkv-er", (4, 8))
    torch.testing.assert_close(table.values, outcomes[0].scores)
    with pytest.raises(NeedleError, match=rf"None of 1 runs(?s:.*)right: nothing like it\n.*given: {outcomes[1].text}"):
        mean_scores(plan, outcomes[1:])


def test_one_prompt_is_one_run_however_many_depths_it_stands_for(model, tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(running, "answer", lambda *args: made.append(1) or answer(*args))
    plan = small_plan(NeedleKind.ER, (0,), depths=10)
    outcomes = list(run_needles(model, plan, Journal.open(tmp_path / "j.jsonl", {})))
    assert (len(outcomes), len(made)) == (20, 2)


@pytest.mark.parametrize("kind", list(NeedleKind))
def test_scores_of_the_bundled_model_ship(kind):
    table = HeadScores.load(HEADS_PATH / f"headkv-{kind}.safetensors")
    assert (table.method, table.model, table.heads, table.shape) == (f"headkv-{kind}", "winnow-bundled", "kv", (4, 4))
    assert (table.date, table.license) == ("2026-11-21", "Apache-2.0")
    assert table.samples is not None
    assert table.samples > 100
    assert float(table.normalized().values.sum()) == pytest.approx(1)


def made_up(plan: NeedlePlan, scores) -> list[Outcome]:
    """Runs whose scores are `scores(place)`, None where the answer is wrong, in the order of the plan's places."""
    return [
        Outcome(cell, place.tokens, "lemon", found)
        for place in plan.places
        for found in [scores(place)]
        for cell in place.cells
    ]


def test_halves_are_of_other_prompts():
    plan = small_plan(NeedleKind.ER, (0, 200), 3)
    right = {(0, 0): 1.0, (0, 200): 2.0, (1, 200): 4.0}
    outcomes = made_up(
        plan,
        lambda place: torch.full((2, 4), right[key]) if (key := (place.example, *place.lengths)) in right else None,
    )
    halves = right_halves(plan, outcomes)
    assert halves is not None
    # By example, length and depth: one bare prompt that is three runs, then three of 200 tokens, then three more.
    ones = [1.0, 1.0, 1.0, 2.0, 4.0, 4.0], [2.0, 2.0, 4.0]
    for half, values in zip(halves, ones, strict=True):
        torch.testing.assert_close(half, torch.full((2, 4), sum(values) / len(values)))
    # In whatever order they were made.
    for half, same in zip(halves, right_halves(plan, outcomes[::-1]), strict=True):
        torch.testing.assert_close(half, same)


def test_one_prompt_has_no_halves():
    plan = small_plan(NeedleKind.ER, (0,), 3)
    outcomes = made_up(plan, lambda place: torch.rand(2, 4) if place.example == 0 else None)
    assert sum(outcome.scores is not None for outcome in outcomes) == 3
    assert right_halves(plan, outcomes) is None


def test_lengths_that_are_one_prompt_are_one_run_in_one_half(model, tmp_path, monkeypatch):
    """Halves of the same runs at lengths without room for a sentence would agree, whatever the runs say."""
    made = []
    monkeypatch.setattr(running, "answer", lambda *args: made.append(1) or answer(*args))
    bare = small_plan(NeedleKind.ER, (0, 10, 20), depths=4)
    outcomes = list(run_needles(model, bare, Journal.open(tmp_path / "j.jsonl", {})))
    assert (len(outcomes), len(made)) == (2 * 3 * 4, 2)
    scores = [torch.rand(2, 4, dtype=torch.float64) for _ in bare.examples]
    alone = made_up(bare, lambda place: scores[0] if place.example == 0 else None)
    assert right_halves(bare, alone) is merged_halves(sorted(alone, key=lambda run: run.cell)) is None
    two = made_up(bare, lambda place: scores[place.example])
    for halves in (right_halves(bare, two), merged_halves(sorted(two, key=lambda run: run.cell))):
        for half, one in zip(halves, scores, strict=True):
            torch.testing.assert_close(half, one)


def test_halves_of_shards_are_those_of_the_whole():
    plan = small_plan(NeedleKind.ER, (0, 10, 200, 300), 3)
    found = {place: torch.rand(2, 4, dtype=torch.float64) for place in plan.places if place.before != 1}
    outcomes = made_up(plan, found.get)
    merged = merged_halves(sorted(outcomes, key=lambda run: run.cell))
    for half, same in zip(right_halves(plan, outcomes), merged, strict=True):
        torch.testing.assert_close(half, same)


def test_noise_and_signal_of_runs_are_told_apart():
    plan = small_plan(NeedleKind.ER, (0, 200, 300), 4)
    generator = torch.Generator().manual_seed(0)
    truth = torch.randn(6, 8, generator=generator, dtype=torch.float64)

    def found_noise(signal: float) -> list[bool]:
        def scores(_):
            return signal * truth + torch.randn(6, 8, generator=generator, dtype=torch.float64)

        return [SplitHalf.of(*right_halves(plan, made_up(plan, scores))).noise for _ in range(40)]

    assert sum(found_noise(0.0)) > 32
    assert not any(found_noise(1.0))


@pytest.mark.parametrize(("prompts", "stops"), [(5, False), (6, True), (13, True), (14, False)])
def test_a_model_that_answers_nothing_is_not_asked_for_ever(prompts, stops):
    plan = small_plan(NeedleKind.ER, (0, 200, 300), 3)
    assert len(plan.places) == 14
    made = made_up(plan, lambda _: None)
    cells = {cell for place in plan.places[:prompts] for cell in place.cells}
    outcomes = [outcome for outcome in made if outcome.cell in cells]
    if stops:
        with pytest.raises(NeedleError, match=rf"None of the first {prompts} of 14 prompts(?s:.*)--keep-going"):
            check_hopeful(plan, outcomes)
    else:
        check_hopeful(plan, outcomes)
    outcomes[0] = replace(outcomes[0], scores=torch.ones(2, 4))
    check_hopeful(plan, outcomes)


def test_a_configuration_whose_query_heads_do_not_divide_is_not_believed(tmp_path):
    told = {"task": "needle", "model": "a", "layers": 2, "kind": "er", "seed": 0, "lengths": [9], "depths": [0.5]}
    told |= {"answer_tokens": 4, "examples": 1, "heads": 4}
    assert needle_config(Journal.open(tmp_path / "a.jsonl", told | {"query_heads": 8})).heads == 4
    with pytest.raises(JournalError, match="6 query heads"):
        needle_config(Journal.open(tmp_path / "b.jsonl", told | {"query_heads": 6}))
