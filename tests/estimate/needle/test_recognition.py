"""Journals of earlier versions, which do not name the weights: recognized by a run, or refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from support.needles import other_weights, small_plan
from winnow.estimate.errors import JournalError
from winnow.estimate.journal import Journal
from winnow.estimate.needle import recognition
from winnow.estimate.needle.plan import NeedlePlan
from winnow.estimate.needle.recognition import check_weights
from winnow.estimate.needle.run import KnownRuns, known_runs, needle_shape, run_needles
from winnow.estimate.needle.settings import NeedleKind
from winnow.models import ModelSpec, load_model, open_model

pytestmark = pytest.mark.usefixtures("one_thread")


def known(model, plan: NeedlePlan, path) -> KnownRuns:
    """A journal with all runs of a plan."""
    journal = Journal.open(path, plan.config())
    list(run_needles(model, plan, journal))
    return known_runs(plan, journal, needle_shape(model))


@pytest.mark.parametrize("kind", [NeedleKind.ER, NeedleKind.R2])
def test_the_same_weights_are_recognized_by_one_run_and_others_refused(model, tmp_path, monkeypatch, kind):
    plan = small_plan(kind, (0, 60), depths=1)
    runs = known(model, plan, tmp_path / "a.jsonl")
    made = []
    real = recognition.make_run
    monkeypatch.setattr(recognition, "make_run", lambda *given: made.append(given) or real(*given))
    check_weights(model, plan, runs)
    assert len(made) == 1
    other = load_model(open_model(other_weights(tmp_path / "other")), "cpu", "float32")
    with pytest.raises(JournalError, match=r"a\.jsonl was written by an earlier version.* are of other weights"):
        check_weights(other, plan, runs)


def test_another_answer_is_of_other_weights_whatever_the_scores(model, tmp_path):
    plan = small_plan(NeedleKind.ER, (0,), depths=1)
    runs = known(model, plan, tmp_path / "a.jsonl")
    others = {cell: replace(outcome, text=f"{outcome.text} then") for cell, outcome in runs.outcomes.items()}
    with pytest.raises(JournalError, match="of other weights"):
        check_weights(model, plan, runs._replace(outcomes=others))


def test_what_does_not_tell_is_refused(model, tmp_path):
    plan = small_plan(NeedleKind.ER, (0,), depths=1)
    runs = known(model, plan, tmp_path / "a.jsonl")
    wrong = {cell: replace(outcome, scores=None) for cell, outcome in runs.outcomes.items()}
    with pytest.raises(JournalError, match=r"none of its runs was right.*give another --out or --journal"):
        check_weights(model, plan, runs._replace(outcomes=wrong))
    with pytest.raises(JournalError, match="scores in bfloat16 came from rounded logits"):
        check_weights(load_model(open_model(other_weights(tmp_path / "m")), "cpu", "bfloat16"), plan, runs)
    with pytest.raises(JournalError, match="kind r are too coarse"):
        check_weights(model, small_plan(NeedleKind.R, (0,), depths=1), runs)
    check_weights(model, plan, runs._replace(outcomes={}))


def test_a_recipe_that_was_sent_makes_the_same_runs(model):
    import pickle

    from support.needles import BUNDLED
    from winnow.estimate.executors.base import Item
    from winnow.estimate.needle.recipe import NeedleRecipe
    from winnow.estimate.needle.run import needle_worker

    plan = small_plan(NeedleKind.ER, (0, 60), depths=1)
    sent = pickle.loads(pickle.dumps(NeedleRecipe(ModelSpec(BUNDLED.name, "cpu", "float32"), plan)))
    item = Item(0, 1)
    assert sent.prepare()(item) == needle_worker(model, plan)(item)
    assert torch.tensor(sent.prepare()(item).scores).any()
