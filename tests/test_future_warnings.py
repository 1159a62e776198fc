"""Calls of transformers, none of which gives an argument by a name that will go."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch

import winnow
from support.asked import DOCUMENT, QUESTION
from support.families import build, prompt
from support.graphed import places
from support.needles import small_plan
from support.serving import QUESTIONS, beginning, text_of, told
from winnow.cache.replay_words import ReplayWords
from winnow.estimate.centers import measure_centers
from winnow.estimate.curves.run import Asked, CurvePlan, run_curves
from winnow.estimate.journal import Journal
from winnow.estimate.needle.run import run_needles
from winnow.estimate.needle.settings import NeedleKind
from winnow.estimate.repeated import Calibration, repeated_scores
from winnow.estimate.shape import table_shape
from winnow.evaluate.asked_together import answers_after
from winnow.evaluate.batch import AnswerStart, decode_batch
from winnow.evaluate.decoding import decode, prefill
from winnow.evaluate.likelihood import log_probabilities
from winnow.models import load_model
from winnow.models.cache_argument import CACHE_NAMES, generation_name
from winnow.score import KVzip, SnapKV
from winnow.serve.asked import Finished
from winnow.serve.engine import Engine, Limits

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.filterwarnings("error::FutureWarning")]
ROOT = Path(__file__).resolve().parents[1]
NO_STOPS: frozenset[int] = frozenset()


@pytest.fixture(scope="module")
def model(source):
    found = load_model(source, "cpu", "float32")
    found.set_attn_implementation("winnow")
    return found


@pytest.fixture
def small():
    found = build("llama", num_hidden_layers=2)
    found.set_attn_implementation("winnow")
    return found


@pytest.mark.parametrize("options", [{}, {"chunk_size": 50}, {"question_aware": False}, {"method": "kvzip"}], ids=str)
def test_answers(model, tokenizer, options):
    options = {"method": "adakv", "budget": "50%", "max_new_tokens": 3, **options}
    assert winnow.generate(model, tokenizer, DOCUMENT.text, [QUESTION.text, QUESTIONS[1]], **options)


def test_contexts_that_generation_goes_on_from(small):
    context = winnow.compress(small, prompt(length=30), "expectedattention @ 50%")
    ids = torch.cat([context.input_ids, prompt(length=4, seed=1)], dim=1)
    with winnow.step_graphs(small):
        output = small.generate(ids, **{generation_name(): context.cache()}, max_new_tokens=3, do_sample=False)
    assert output.shape == (1, 37)


def test_rows_and_choices(small):
    ids, method = prompt(length=30), winnow.method("snapkv @ 12")
    cache = winnow.CompressedCache(small, method)
    assert len(list(decode(small, cache, prefill(small, ids, cache), 3, NO_STOPS))) == 3
    cache = winnow.CompressedCache(small, method)
    rows = [AnswerStart(cache, prefill(small, ids, cache))]
    assert len(log_probabilities(small, AnswerStart(cache.alone(0), rows[0].logits), ids[0, :3])) == 3
    assert decode_batch(small, rows, 3, NO_STOPS)[0].tokens
    contexts = [winnow.compress(small, ids, method)]
    assert answers_after(small, contexts, [ids[0, :3], ids[0, :5]], 3, NO_STOPS)


def test_steps_of_graphs():
    pytest.importorskip("triton")
    with places(kernels=False) as both_places:
        both = both_places.pair()
        both.graphed()
        assert both.steps(3)[-1]


def test_served_rows(source, model):
    engine = Engine(source, model, Limits())
    try:
        answer = told(engine, beginning(model, "snapkv @ 16"), text_of(30, 1), most=3).wait()
    finally:
        assert engine.close()
    assert isinstance(answer.last, Finished)


def test_estimates(source, model, small, tmp_path):
    assert measure_centers(small, prompt(length=20)).tokens == 16
    words = ReplayWords(*(torch.tensor(each) for each in ([5, 6], [7, 8], [9])))
    assert repeated_scores(small, [Calibration(prompt(length=20), 4)], words, KVzip()).values.shape[0] == 2
    plan = small_plan(NeedleKind.R2, (0,), depths=1)
    assert list(run_needles(model, plan, Journal.open(tmp_path / "needles.jsonl", plan.config())))
    curves = CurvePlan(SnapKV(), (Asked(DOCUMENT.text, QUESTION.text),), max_new_tokens=3)
    journal = Journal.open(tmp_path / "curves.jsonl", {"task": "curves"})
    assert len(run_curves(model, source.tokenizer, curves, journal, table_shape(model)))


def test_no_call_in_the_library_names_the_cache():
    """The name is the model's to say."""
    for file in (ROOT / "src").rglob("*.py"):
        calls = [each for each in ast.walk(ast.parse(file.read_text(encoding="utf-8"))) if isinstance(each, ast.Call)]
        assert CACHE_NAMES[-1] not in {named.arg for call in calls for named in call.keywords}, file
