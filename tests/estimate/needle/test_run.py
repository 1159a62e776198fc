"""Runs with their journal, and the table that they make."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from support.needles import small_plan
from winnow.bundled import HEADS_PATH
from winnow.estimate.errors import NeedleError
from winnow.estimate.journal import Journal
from winnow.estimate.needle import run as running
from winnow.estimate.needle.generate import answer
from winnow.estimate.needle.run import mean_scores, run_needles
from winnow.estimate.needle.settings import NeedleKind
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
    assert [one.cell for one in resumed] == [one.cell for one in whole] == plan.cells
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
