"""Settings that a file carries, believed only where they fit."""

from __future__ import annotations

import json

import pytest
import torch

from support.tables import COKV_SETTINGS, asking
from winnow.bundled import HEADS_PATH
from winnow.estimate.cokv.examples import generated_examples, hash_of
from winnow.estimate.errors import NotVerifiable
from winnow.estimate.needle.settings import NeedleKind, spread_depths
from winnow.estimate.verify.settings import cokv_settings, needle_settings
from winnow.heads import HeadScores, read_scores
from winnow.tasks.prompt_style import USUAL


def test_shipped_files_carry_what_verifying_needs():
    for kind in NeedleKind:
        settings = needle_settings(read_scores(HEADS_PATH / f"headkv-{kind}.safetensors"))
        assert settings[:6] == (kind, 0, 10, (0, 512, 1024, 1536, 2048), spread_depths(10), 50)
        assert settings.runs == 500
        assert (settings.examples_source.origin, settings.haystack_source.origin) == ("tasks", "tasks")
        assert settings.examples_source.hash != settings.haystack_source.hash
    settings = cokv_settings(read_scores(HEADS_PATH / "cokv.safetensors"))
    assert settings[:12] == (0, 16, (2, 4, 6, 8), 16_384, 24, 512, 8, 24, (), USUAL, "exact_match", "both")
    assert settings.examples_hash == hash_of(generated_examples())


def test_coalition_sizes_that_do_not_fit_the_table_are_not_believed():
    table = HeadScores(torch.ones(2, 2), "cokv", seed=0, samples=8, settings=json.dumps(COKV_SETTINGS))
    with pytest.raises(NotVerifiable, match="does not fit its 4 heads"):
        cokv_settings(table)
    for sizes in ([5], [0, 2], [2, 2]):
        with pytest.raises(NotVerifiable, match="does not fit"):
            cokv_settings(asking(table, players=4, sizes=sizes))
    assert cokv_settings(asking(table, players=4, sizes=[1, 2], question_tokens=None)).tokens is None


def test_a_metric_that_is_none_is_not_believed():
    table = HeadScores(torch.ones(2, 2), "cokv", seed=0, samples=8, settings=json.dumps(COKV_SETTINGS))
    good = {"players": 4, "sizes": [2]}
    assert cokv_settings(asking(table, **good, metric="token_f1")).metric == "token_f1"
    for metric in ("f1", 1, ["token_f1"]):
        with pytest.raises(NotVerifiable, match="does not say its metric"):
            cokv_settings(asking(table, **good, metric=metric))


@pytest.mark.parametrize("left_out", [[-1], [24], [True], list(range(24)), "1"])
def test_examples_left_out_that_there_are_not_are_not_believed(left_out):
    table = read_scores(HEADS_PATH / "cokv.safetensors")
    assert cokv_settings(asking(table, left_out=[3, 5])).left_out == (3, 5)
    with pytest.raises(NotVerifiable, match=r"left.out"):
        cokv_settings(asking(table, left_out=left_out))


@pytest.mark.parametrize(("name", "value"), [("examples_from", "web"), ("haystack_from", 1), ("haystack_hash", 7)])
def test_sources_that_there_are_not_are_not_believed(name, value):
    table = read_scores(HEADS_PATH / "headkv-r.safetensors")
    assert needle_settings(asking(table, **{name: None})).runs == 500
    with pytest.raises(NotVerifiable, match=f"does not say its {name.replace('_', ' ')}"):
        needle_settings(asking(table, **{name: value}))
