"""DuoAttention's published patterns: clipped gates, the config beside them, files that are no pattern."""

from __future__ import annotations

import json

import numpy as np
import pytest

from support.published import DATA, headkv_file, needs_data
from winnow.heads import HeadScoresError, read_duo, read_scores

DUO = DATA / "duo_patterns"


def test_duo_is_clipped_as_its_authors_do(tmp_path):
    path = tmp_path / "Tiny.tsv"
    path.write_text("-1.5e-3\t1.0\n0.5\t1.001\n\n")
    scores = read_scores(path)
    assert scores.values.tolist() == [[0, 1], [0.5, 1]]
    assert (scores.method, scores.heads, scores.model, scores.seed) == ("duoattention", "kv", "Tiny", None)


@pytest.mark.parametrize(
    ("pattern", "config"),
    [("Tiny.tsv", "Tiny.config.json"), ("full_attention_heads.tsv", "config.json")],
)
def test_duo_reads_the_config_beside_it(tmp_path, pattern, config):
    (tmp_path / pattern).write_text("1\t0\n")
    (tmp_path / config).write_text(json.dumps({"model_name": "models/Other-7B/", "seed": 42}))
    scores = read_duo(tmp_path / pattern)
    assert (scores.model, scores.seed) == ("Other-7B", 42)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("1\t0\n1\n", "line 2: 1 heads, the first layer has 2"),
        ("1\tx\n", "line 1: not a row of numbers"),
        (" \n\n", "has no rows"),
        ("1\t3.5\n", "3.5 for layer 0, head 1"),
        ("1\t-0.5\n", "-0.5 for layer 0, head 1"),
        ("1\tnan\n", "layer 0, head 1 is nan"),
        ("0\t-1e-5\n", "All head scores are zero"),
    ],
)
def test_what_is_no_duo_pattern(tmp_path, text, says):
    path = tmp_path / "a.tsv"
    path.write_text(text)
    with pytest.raises(HeadScoresError, match=says):
        read_duo(path)


def test_duo_wants_a_text_table(tmp_path):
    with pytest.raises(HeadScoresError, match="is a JSON file, not a DuoAttention pattern"):
        read_duo(headkv_file(tmp_path, {"0-0": [1]}))


@needs_data
def test_published_duo_pattern():
    scores = read_scores(DUO / "Mistral-7B-Instruct-v0.2.tsv")
    raw = np.loadtxt(DUO / "Mistral-7B-Instruct-v0.2.tsv")
    assert raw.min() < 0
    assert np.array_equal(scores.values.numpy(), raw.clip(0, 1))
    assert (scores.shape, scores.heads, scores.seed) == ((32, 8), "kv", 42)
    assert scores.model == "Mistral-7B-Instruct-v0.2"


@pytest.mark.parametrize("seed", [True, "42", 4.5, None])
def test_a_seed_that_is_none_is_left_out(tmp_path, seed):
    (tmp_path / "Tiny.tsv").write_text("1\t0\n")
    (tmp_path / "Tiny.config.json").write_text(json.dumps({"model_name": "Other-7B", "seed": seed}))
    assert read_duo(tmp_path / "Tiny.tsv").seed is None


def test_a_layer_with_more_heads_than_the_first_is_told(tmp_path):
    (tmp_path / "a.tsv").write_text("1\n1\t0\n")
    with pytest.raises(HeadScoresError, match="line 2: 2 heads, the first layer has 1"):
        read_duo(tmp_path / "a.tsv")
