"""Full caches beside printed rows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from support.runs import ROW
from winnow.runs.full_row import beside_printed, published_row
from winnow.tasks.protocols import protocol

HEADKV = protocol("longbench-headkv")


@pytest.mark.parametrize(
    "name", ["meta-llama/Meta-Llama-3-8B-Instruct", "models/meta-llama-3-8b-instruct/", "Meta-Llama-3-8B-Instruct"]
)
def test_a_model_is_found_by_the_last_part_of_its_name(name):
    row = published_row(HEADKV, name)
    assert row is not None
    assert row["qasper"] == 32.07


def test_other_models_have_no_row():
    assert published_row(HEADKV, "Qwen/Qwen2.5-0.5B-Instruct") is None
    assert published_row(protocol("plain"), "meta-llama/Meta-Llama-3-8B-Instruct") is None


def rows(share: float, count: int = 200, method: str = "full"):
    right = round(share * count)
    return [
        replace(
            ROW, task="qasper", example=str(n), context=str(n), method=method, scores={"token_f1": float(n < right)}
        )
        for n in range(count)
    ]


def test_means_near_and_far_from_what_is_printed():
    printed = {"qasper": 32.07, "musique": 21.18}
    (near,) = beside_printed([*rows(0.33), *rows(0.9, method="adakv @ 10%")], printed)
    assert near.task == "qasper"
    assert near.found.mean == pytest.approx(33)
    assert not near.apart
    (far,) = beside_printed(rows(0.5), printed)
    assert far.apart


def test_few_examples_are_compared_with_nothing():
    assert beside_printed(rows(0.33, count=20), {"qasper": 32.07}) == []
