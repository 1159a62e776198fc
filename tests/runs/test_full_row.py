"""Full caches beside printed rows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from support.runs import ROW
from winnow.runs.full_row import beside_printed, published_row
from winnow.tasks.protocols import protocol

HEADKV = protocol("longbench-headkv")


@pytest.mark.parametrize(
    "name",
    [
        "meta-llama/Meta-Llama-3-8B-Instruct",
        "models/meta-llama-3-8b-instruct/",
        "Meta-Llama-3-8B-Instruct",
        "Llama-3-8B-Instruct",
    ],
)
def test_a_model_is_found_by_the_last_part_of_its_name(name):
    row = published_row(HEADKV, name)
    assert row is not None
    assert row["qasper"] == 32.07


def test_the_hub_s_two_names_of_llama_3_1_are_one_model():
    names = ("meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Meta-Llama-3.1-8B-Instruct")
    first, second = (published_row(protocol("longbench-kvec"), name) for name in names)
    assert first == second
    assert first is not None


def test_other_models_have_no_row():
    assert published_row(HEADKV, "Qwen/Qwen2.5-0.5B-Instruct") is None
    assert published_row(protocol("plain"), "meta-llama/Meta-Llama-3-8B-Instruct") is None


def rows(share: float, count: int = 200, method: str = "full", task: str = "qasper"):
    right = round(share * count)
    return [
        replace(ROW, task=task, example=str(n), context=str(n), method=method, scores={"token_f1": float(n < right)})
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


def test_one_of_many_tasks_may_be_a_little_apart():
    printed = {"qasper": 42.0, **{f"other_{number}": 50.0 for number in range(15)}}
    many = [row for task in printed for row in rows(0.5, task=task)]
    assert beside_printed(many[:200], printed)[0].apart
    assert not any(each.apart for each in beside_printed(many, printed))


def test_a_paper_that_drew_its_own_examples_has_an_error_of_its_own():
    same, others = (beside_printed(rows(0.5), {"qasper": 58.0}, generated)[0] for generated in (False, True))
    assert same.apart
    assert not others.apart
    assert others.found.mean == same.found.mean
    assert others.found.high - 50 == pytest.approx(2**0.5 * (same.found.high - 50))
