"""Head scores as methods ask for them: given or shipped, of the right kind, of the model and its shape."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch

import winnow
from support.families import build, prompt
from support.ready import random_scores
from winnow import HeadScores
from winnow.allocate import HeadKV, Plan
from winnow.bundled import HEADS_PATH, MODEL_PATH
from winnow.errors import MethodError
from winnow.models import load_model, open_model

MODEL = build("llama", num_hidden_layers=2)
MODEL.set_attn_implementation("winnow")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: HeadKV([[1, 2]]), "scores must be a file of head scores or a winnow.HeadScores"),
    ],
)
def test_wrong_parameters_are_refused(make: object, message: str) -> None:
    with pytest.raises(MethodError, match=message):
        make()  # type: ignore[operator]


def test_scores_are_needed_and_must_fit() -> None:
    with pytest.raises(MethodError, match=r"HeadKV needs 'headkv-r2' head scores of this model: give scores=FILE"):
        winnow.CompressedCache(MODEL, winnow.method("headkv-r2", 64))
    with pytest.raises(MethodError, match="CoKV needs head scores"):
        winnow.CompressedCache(MODEL, winnow.method("snapkv+shapley", 64))
    wrong = winnow.method("cokv", 64, scores=random_scores((3, 2), "cokv"))
    with pytest.raises(MethodError, match="3 layers with 2 KV heads, the model 2 compressed layers with 2 KV heads"):
        winnow.CompressedCache(MODEL, wrong)
    per_query = HeadScores(torch.rand(2, 4) + 0.1, "headkv-r", heads="query")
    with pytest.raises(MethodError, match=r"average its groups with scores.grouped\(2\)"):
        winnow.CompressedCache(MODEL, winnow.method("headkv-r", 64, scores=per_query))
    winnow.CompressedCache(MODEL, winnow.method("headkv-r", 64, scores=per_query.grouped(2)))
    with pytest.raises(MethodError, match="HeadKV needs head scores"):
        winnow.CompressedCache(MODEL, winnow.method("snapkv+raba+headkv", 64))


def test_a_waiting_prompt_checks_each_method(tmp_path: Path) -> None:
    waiting = winnow.CompressedCache(MODEL, winnow.method("full"))
    waiting.activate_past_recording()
    with torch.no_grad():
        MODEL(prompt(length=30), past_key_values=waiting)
    with pytest.raises(MethodError, match="needs 'cokv' head scores"):
        waiting.compressed_by(winnow.method("cokv", 20))
    fork = waiting.compressed_by(winnow.method("cokv", 20, scores=random_scores((2, 2), "cokv")))
    assert sum(map(sum, fork.stats().slots)) == 80


def test_scores_that_are_shipped_with_a_model() -> None:
    source = open_model(MODEL_PATH)
    bundled = load_model(source, "cpu", "float32")
    ids = source.tokenizer("The favorite fruit of Alice is mango. " * 12, return_tensors="pt").input_ids
    for name in ("headkv-r", "headkv-er", "headkv-r2"):
        plain = winnow.method(name, 20)
        assert str(plain) == f"{name} @ 20"
        cache = winnow.CompressedCache(bundled, plain)
        with torch.no_grad():
            bundled(ids, past_key_values=cache)
        scores = HeadScores.load(HEADS_PATH / f"{name}.safetensors")
        plan = Plan(20 * 16, (4,) * 4, ids.shape[1], 8)
        assert [sum(layer) for layer in cache.stats().slots] == HeadKV(scores).layer_totals(plan)
        assert cache.method.allocator == HeadKV(scores, expects=name)


def test_scores_of_another_model_are_pointed_out() -> None:
    scores = HeadScores(torch.rand(2, 2) + 0.1, "cokv", model="meta-llama/Llama-3-8B")
    named = build("llama", num_hidden_layers=2)
    named.set_attn_implementation("winnow")
    named.config.name_or_path = "somewhere/Mistral-7B"
    with pytest.warns(UserWarning, match=r"those of meta-llama/Llama-3-8B, the model is somewhere/Mistral-7B"):
        winnow.CompressedCache(named, winnow.method("cokv", 64, scores=scores))
    named.config.name_or_path = "copies/llama-3-8b/"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        winnow.CompressedCache(named, winnow.method("cokv", 64, scores=scores))
