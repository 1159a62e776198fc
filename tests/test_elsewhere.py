"""Commands' work on a GPU that stands in: no tensor of the CPU meets one of it, and answers and scores are the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

import winnow
from support.elsewhere import counted, gpu_stand_in, moved_model, there
from support.needles import small_plan
from support.plain_layers import load_plain
from support.small_runs import evaluation, recipe, small_task
from winnow.bundled import MODEL_PATH
from winnow.estimate.cokv.examples import generated_examples
from winnow.estimate.cokv.plan import Sampled
from winnow.estimate.cokv.recipe import CoalitionRecipe
from winnow.estimate.cokv.sampling import PlayerSplits
from winnow.estimate.cokv.settings import Terms
from winnow.estimate.executors.base import Item
from winnow.estimate.executors.local import LocalExecutor
from winnow.estimate.journal import Journal
from winnow.estimate.needle.run import run_needles
from winnow.estimate.needle.settings import NeedleKind
from winnow.estimate.shape import table_shape
from winnow.models import ModelSpec, load_model, open_model
from winnow.runs.worker import RunRecipe
from winnow.tasks import generate_document

SOURCE = open_model(MODEL_PATH)
Work = Callable[[PreTrainedModel, Path], Any]
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def here() -> PreTrainedModel:
    return load_plain(SOURCE, "float32")


@pytest.fixture(scope="module")
def elsewhere() -> PreTrainedModel:
    return moved_model(load_model(SOURCE, "cpu", "float32"))


@dataclass(eq=False)
class Scores:
    """Head scores, the same if they differ by the order alone in which kernels and torch add up."""

    values: Tensor

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Scores) and torch.allclose(self.values, other.values, rtol=1e-3, atol=1e-6)


def needle(kind: NeedleKind) -> Work:
    """Head scores of two prompts, and the answers."""

    def run(model: PreTrainedModel, folder: Path) -> Any:
        plan = small_plan(kind, (0,), depths=1)
        found = run_needles(model, plan, Journal.open(folder / "needle.jsonl", plan.config()))
        return [(each.text, None if each.scores is None else Scores(each.scores)) for each in found]

    return run


def cokv(model: PreTrainedModel, folder: Path) -> Any:
    """Utilities of four coalitions of heads."""
    players = table_shape(model)
    plan = Sampled(PlayerSplits(players.total, (8,), 0), pairs=2)
    examples = tuple(generated_examples(1))
    made = CoalitionRecipe(ModelSpec("", "cpu", "float32"), players.heads, examples, Terms(max_new_tokens=4), plan)
    return [done.values for done in LocalExecutor(made.worker(model, SOURCE.tokenizer)).run([Item(0, 0)])]


@cache
def evaluation_of(seen: bool) -> RunRecipe:
    """Two questions about a document, in a form that knows the model by weights that can be read."""
    task = small_task(1)
    short = replace(task, examples=task.examples[:2])
    return recipe(load_model(SOURCE, "cpu", "float32"), [short], seen, methods=("adakv @ 25%",))


def evaluated(seen: bool) -> Work:
    """Answers and scores of questions about a document, asked side by side where they were not seen."""

    def run(model: PreTrainedModel, folder: Path) -> Any:
        made = evaluation_of(seen)
        found = evaluation(made, folder / "cells.jsonl")
        worker = LocalExecutor(made.worker(model, SOURCE.tokenizer))
        found.run(worker, found.missing(), lambda *_: None, allow_zero=True)
        return [(row.prediction, row.scores) for row in found.rows]

    return run


def answered(**options: Any) -> Work:
    """Answers of `winnow run`, and of `winnow.generate`."""

    def run(model: PreTrainedModel, folder: Path) -> Any:
        document = generate_document(3, tokens=200, questions_per_kind=1)
        asked = [question.text for question in document.questions[:2]]
        found = winnow.generate(model, SOURCE.tokenizer, document.text, asked, max_new_tokens=4, **options)
        return [each.text for each in found]

    return run


WORK = {
    "needle r": needle(NeedleKind.R),
    "needle r2": needle(NeedleKind.R2),
    "cokv": cokv,
    "eval": evaluated(seen=True),
    "eval of several questions": evaluated(seen=False),
    "run": answered(method="aperturekv @ 32"),
    "run that compresses first": answered(method="keydiff+bits(8) @ 32", question_aware=False, fold_every=2),
}


@pytest.mark.parametrize("name", WORK)
def test_work_is_as_on_the_cpu(name: str, here: PreTrainedModel, elsewhere: PreTrainedModel, tmp_path: Path) -> None:
    folders = [tmp_path / each for each in ("here", "elsewhere")]
    for each in folders:
        each.mkdir()
    expected = WORK[name](here, folders[0])
    with gpu_stand_in():
        found = WORK[name](elsewhere, folders[1])
    assert found == expected


@torch.no_grad()
@pytest.mark.parametrize("change", ["reorder_cache", "batch_select_indices"])
def test_rows_change_after_one_look(change: str, elsewhere: PreTrainedModel) -> None:
    """Beams that are chosen on the GPU are what the host waits for at a step, once for all layers."""
    ids = torch.arange(2, 42).view(2, 20)
    cache = winnow.CompressedCache(elsewhere, "adakv @ 12")
    with gpu_stand_in() as notes:
        elsewhere(there(ids), past_key_values=cache, use_cache=True)
        notes.clear()
        getattr(cache, change)(there(torch.tensor([1, 1])))
    assert {name: count for name, count in counted(notes).items() if name != "upload"} == {"download": 1}
    assert len(elsewhere.model.layers) > 1


@torch.no_grad()
def test_coalitions_are_formed_after_one_look_a_layer(elsewhere: PreTrainedModel) -> None:
    cache = winnow.CompressedCache(elsewhere, "full")
    layers, heads = len(elsewhere.model.layers), elsewhere.config.num_key_value_heads
    with gpu_stand_in() as notes:
        elsewhere(there(torch.arange(2, 22)[None]), past_key_values=cache, use_cache=True)
        notes.clear()
        cache.coalitions(torch.eye(layers * heads).view(-1, layers, heads) > 0, window=4)
    assert counted(notes).total() - counted(notes)["upload"] == layers + 1


@torch.no_grad()
def test_a_padded_turn_waits_alike_for_any_rows(elsewhere: PreTrainedModel) -> None:
    waits = []
    for rows in (2, 4):
        cache = winnow.CompressedCache(elsewhere, "adakv @ 12")
        mask = torch.ones(rows, 23, dtype=torch.int64)
        mask[0, 20] = 0
        with gpu_stand_in() as notes:
            elsewhere(there(torch.arange(2, 22).repeat(rows, 1)), past_key_values=cache, use_cache=True)
            notes.clear()
            turn = {"attention_mask": there(mask), "position_ids": there(mask.cumsum(1)[:, 20:] - 1)}
            elsewhere(there(torch.full((rows, 3), 5)), past_key_values=cache, use_cache=True, **turn)
        waits.append(counted(notes).total() - counted(notes)["upload"])
    assert waits[0] == waits[1]
