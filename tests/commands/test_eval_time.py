"""The time of a run, told before it begins: against sums by hand, and only where it is long."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from winnow.bundled import MODEL_PATH
from winnow.commands import eval_time
from winnow.commands.eval_time import Speed, speed_of, times_of
from winnow.commands.eval_work import prepare
from winnow.commands.options.eval import EvalOptions
from winnow.models import load_model, open_model
from winnow.runs.cells import CellSpace
from winnow.runs.evaluation import Evaluation
from winnow.runs.worker import RunRecipe

pytestmark = pytest.mark.usefixtures("one_thread")

CONTEXT = "The garden of Alice grows pears. " * 40
QUESTIONS = ("What grows in the garden?", "Who has a garden?")
SLOW = Speed(0.5, 4.0)


@pytest.fixture
def folder(tmp_path):
    return tmp_path


@pytest.fixture
def asked(tmp_path):
    """A file of two questions about one context, with answers of 7 tokens at most."""
    path = tmp_path / "questions.jsonl"
    rows = [{"context": CONTEXT, "question": text, "answers": ["pears"]} for text in QUESTIONS]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def work_of(asked, tmp_path, **given):
    """The work of a run with those questions, and its cells."""
    options = EvalOptions(
        benchmark="file", data=asked, methods="snapkv", budgets="10%,20%", out=tmp_path / "run", **given
    )
    work = prepare(options)
    space = CellSpace("0" * 64, work.protocol)
    batch = options.batch or 8
    recipe = RunRecipe(None, space, work.groups(batch), work.methods, batch)
    return work, Evaluation(recipe, NoJournal())


class NoJournal:
    """A journal that nothing was written to."""

    path = Path("cells.jsonl")

    def read(self, _):
        return []


def tokens_of(text):
    """Tokens, by the share that the tokenizer makes of the longest prompt."""
    parts = (CONTEXT, max(QUESTIONS, key=len))
    counted = sum(map(open_model(MODEL_PATH).count_tokens, parts))
    return counted / sum(map(len, parts)) * len(text)


@pytest.mark.parametrize("seen", [True, False])
def test_prompts_are_read_once_and_answers_given_under_every_method(asked, tmp_path, seen):
    work, evaluation = work_of(asked, tmp_path, protocol="plain" if seen else "plain-agnostic")
    times = times_of(work, evaluation.recipe, evaluation.missing(), SLOW)
    questions = [example.question for task in work.tasks for example in task.examples]
    read = tokens_of(CONTEXT + "".join(questions))  # the context once, seen with questions or not
    most = work.tasks[0].judging.max_new_tokens
    assert times.reading == pytest.approx(0.5 * read)
    assert times.answering == pytest.approx(4.0 * 3 * most), "two questions side by side, under three methods"


def test_one_question_after_another_takes_twice_the_steps(asked, tmp_path):
    work, evaluation = work_of(asked, tmp_path, batch=1)
    times = times_of(work, evaluation.recipe, evaluation.missing(), SLOW)
    assert times.answering == pytest.approx(4.0 * 2 * 3 * work.tasks[0].judging.max_new_tokens)


def test_prompts_are_no_longer_than_a_model_reads(asked, tmp_path):
    work, evaluation = work_of(asked, tmp_path)
    work.source.config.max_position_embeddings = 50
    times = times_of(work, evaluation.recipe, evaluation.missing(), SLOW)
    assert times.reading == pytest.approx(0.5 * 2 * 50)


def test_likelihoods_take_no_answers(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text(CONTEXT * 4)
    options = EvalOptions(
        benchmark="text", data=text, methods="snapkv", budgets="10%", out=tmp_path / "run", lengths="300", examples=1
    )
    work = prepare(options)
    recipe = RunRecipe(None, CellSpace("0" * 64, work.protocol), work.groups(8), work.methods)
    evaluation = Evaluation(recipe, NoJournal())
    assert times_of(work, evaluation.recipe, evaluation.missing(), SLOW).answering == 0


def test_only_long_runs_are_told(asked, tmp_path, winnow_run, monkeypatch):
    given = ("eval", "file", "--data", str(asked), "--methods", "snapkv@10%", "--allow-zero", "--out")
    code, _, quick = winnow_run(*given, str(tmp_path / "quick"))
    assert code == 0, quick
    assert "to read" not in quick
    monkeypatch.setattr(eval_time, "speed_of", lambda model, context: SLOW)
    code, _, slow = winnow_run(*given, str(tmp_path / "slow"))
    assert code == 0, slow
    assert "to read, answers at most about" in slow
    assert "(4,000 ms a step)" in slow
    code, _, again = winnow_run(*given, str(tmp_path / "slow"))
    assert code == 0
    assert "to read" not in again, "nothing is left to do"


def test_a_model_has_a_speed():
    speed = speed_of(load_model(open_model(MODEL_PATH), "cpu"))
    assert speed.read > 0
    assert speed.decoded > 0


def test_a_model_is_asked_for_no_more_than_it_reads(monkeypatch):
    model, read = load_model(open_model(MODEL_PATH), "cpu"), []
    monkeypatch.setattr(eval_time, "prefill", lambda model, ids, cache: read.append(ids.shape[1]))
    for context, expected in ((None, 128), (4096, 128), (40, 37), (3, 2)):
        speed_of(model, context)
        assert max(read) == expected
        assert len(read) == 8
        read.clear()
