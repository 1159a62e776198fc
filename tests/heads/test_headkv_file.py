"""HeadKV's published tables: the mean over runs, the kind by name, files that are not complete."""

from __future__ import annotations

import json
import math

import pytest

from support.published import DATA, headkv_file, needs_data
from winnow.heads import HeadScoresError, read_headkv, read_scores, top_heads

R2 = DATA / "headkv_scores" / "Meta-Llama-3-8B-Instruct_retrieval_reasoning_heads.json"


def test_headkv_is_the_mean_over_the_runs(tmp_path):
    content = {"1-1": [7, 8], "0-0": [1, 2], "0-1": [3, 0.5], "1-0": [0, 0]}  # in any order
    scores = read_headkv(headkv_file(tmp_path, content))
    assert scores.values.tolist() == [[1.5, 1.75], [0, 7.5]]
    assert (scores.method, scores.heads, scores.model, scores.samples) == ("headkv-r2", "query", "Tiny", 2)


@pytest.mark.parametrize(
    ("name", "kind", "method", "model"),
    [
        ("M_retrieval_heads.json", None, "headkv-r", "M"),
        ("M_retrieval_reasoning_heads.json", None, "headkv-r2", "M"),
        ("M_retrieval_heads.json", "er", "headkv-er", "M"),
        ("mine.json", "r2", "headkv-r2", ""),
    ],
)
def test_the_name_or_the_caller_says_the_kind(tmp_path, name, kind, method, model):
    scores = read_scores(headkv_file(tmp_path, {"0-0": [1]}, name), kind)
    assert (scores.method, scores.model) == (method, model)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ({"0-0": [1], "1-1": [1]}, r"no scores for 2 of 4 heads \(2 layers of 2\), the first is 0-1"),
        ({"0-1": [1]}, "no scores for 1 of 2 heads"),
        ({"0-0": [1], "99999-99999": [1]}, "the first is 0-1"),
        ({"0-0": [1, 2], "0-1": [1]}, "head 0-1 has 1 runs, head 0-0 has 2"),
        ({"0-0": [], "0-1": []}, "has 0 runs"),
        ({"0-0": [1], "0-1": 3}, "head 0-1 is not a list of numbers, but int"),
        ({"0-0": [1], "0-1": ["1"]}, "'1' at place 0"),
        ({"0-0": [1], "0-1": [True]}, "True at place 0"),
        ({"0-0": [1], "0-1": [None]}, "None at place 0"),
        ({"0-0": [1], "zero": [1]}, "key 'zero'"),
        ({"0-0": [1], "-1-0": [1]}, "key '-1-0'"),
        ({"0-0": [math.nan]}, "NaN, which is no JSON"),
        ({"0-0": [0.0], "0-1": [0]}, "All head scores are zero"),
    ],
)
def test_headkv_files_that_are_not_complete(tmp_path, content, says):
    path = headkv_file(tmp_path, content)
    with pytest.raises(HeadScoresError, match=says) as error:
        read_headkv(path)
    assert str(path) in str(error.value)


def test_headkv_without_a_kind(tmp_path):
    with pytest.raises(HeadScoresError, match="give the kind"):
        read_headkv(headkv_file(tmp_path, {"0-0": [1]}, "mine.json"))
    with pytest.raises(HeadScoresError, match="r, er or r2, not 'r3'"):
        read_headkv(headkv_file(tmp_path, {"0-0": [1]}), "r3")
    with pytest.raises(HeadScoresError, match="names no head"):
        read_headkv(headkv_file(tmp_path, {}))


@needs_data
def test_published_headkv_r2():
    scores = read_scores(R2)
    assert (scores.shape, scores.heads, scores.samples) == ((32, 32), "query", 74)
    assert (scores.method, scores.model) == ("headkv-r2", "Meta-Llama-3-8B-Instruct")
    assert scores.values.sum().item() == pytest.approx(22.87, abs=0.005)
    assert top_heads(scores, 1) == [(15, 30)]
    assert scores.values[15, 30].item() == pytest.approx(0.344, abs=0.0005)
    runs = json.loads(R2.read_text())
    assert scores.values[8, 11].item() == pytest.approx(math.fsum(runs["8-11"]) / 74)
    assert scores.grouped(8).values[15, 7].item() == pytest.approx(scores.values[15, 28:].mean().item())
    assert scores.normalized().values.sum().item() == pytest.approx(1)


@needs_data
@pytest.mark.parametrize(
    ("name", "shape", "samples"),
    [
        ("Meta-Llama-3-8B-Instruct_retrieval_heads", (32, 32), 107),
        ("Mistral-7B-Instruct-v0.2_retrieval_heads", (32, 32), 148),
        ("Qwen3-32B_retrieval_reasoning_heads", (64, 64), 18),
    ],
)
def test_other_published_headkv_tables(name, shape, samples):
    scores = read_headkv(R2.parent / f"{name}.json")
    assert (scores.shape, scores.samples) == (shape, samples)
    assert scores.values.min() >= 0
