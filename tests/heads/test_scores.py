"""Tables of head scores: values and facts that they accept, equality, grouping, shares, means."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

import winnow
from support.head_scores import table
from winnow.errors import WinnowError
from winnow.heads import HeadScores, HeadScoresError


def test_the_table_is_a_float64_copy_on_the_cpu():
    given_values = torch.tensor([[1, 2], [3, 4]], dtype=torch.bfloat16, requires_grad=True)
    scores = HeadScores(given_values, "random")
    with torch.no_grad():
        given_values.zero_()
    assert scores.values.dtype == torch.float64
    assert not scores.values.requires_grad
    assert scores.values.tolist() == [[1, 2], [3, 4]]
    assert scores.shape == (2, 2)
    assert winnow.HeadScores is HeadScores


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (torch.ones(3), r"table \[layers, heads\], not 3"),
        (torch.tensor(1.0), "not a single number"),
        (torch.ones(2, 3, 4), "not 2x3x4"),
        (torch.ones(0, 4), r"empty \(0x4\)"),
        (torch.ones(4, 0), r"empty \(4x0\)"),
        (torch.zeros(2, 2), "All head scores are zero"),
        (torch.tensor([[1.0, 2.0], [math.nan, 3.0]]), "layer 1, head 0 is nan"),
        (torch.tensor([[1.0, math.inf], [1.0, 3.0]]), "layer 0, head 1 is inf"),
        (torch.tensor([[1.0, math.nan], [math.nan, 3.0]]), "1 more"),
        (torch.ones(2, 2, dtype=torch.complex64), "complex64"),
        ([[1.0, 2.0]], "not list"),
        (None, "not NoneType"),
    ],
)
def test_values_that_no_budget_could_follow(values, says):
    with pytest.raises(HeadScoresError, match=says):
        HeadScores(values, "cokv")


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        ({"heads": "both"}, '"kv" or "query"'),
        ({"heads": None}, "heads must be text"),
        ({"method": " "}, "method is empty"),
        ({"method": 3}, "method must be text"),
        ({"samples": 0}, "samples must be a whole number of at least 1"),
        ({"samples": 1.5}, "samples must be"),
        ({"seed": True}, "seed must be a whole number or None"),
        ({"seed": "1"}, "seed must be"),
        ({"date": "yesterday"}, "ISO date"),
        ({"notes": None}, "notes must be text"),
        ({"settings": {}}, "settings must be text"),
        ({"settings": "seed 0"}, "settings must be a JSON object"),
        ({"settings": "[1]"}, "settings must be a JSON object"),
        ({"settings": '{"alpha": NaN}'}, "settings must be a JSON object"),
        ({"settings": '{"a":' * 100_000}, "settings must be a JSON object"),
    ],
)
def test_facts_that_make_no_sense(facts, says):
    with pytest.raises(HeadScoresError, match=says):
        HeadScores(torch.ones(2, 2), **({"method": "cokv"} | facts))


def test_errors_are_winnow_errors_and_value_errors():
    assert issubclass(HeadScoresError, WinnowError)
    assert issubclass(HeadScoresError, ValueError)


def test_tables_are_equal_by_content_and_not_by_path():
    one, other = table(path=Path("a")), table(path=Path("b"))
    assert one == other
    assert hash(one) == hash(other)
    assert len({one, other, table(((1.0, 2.0), (3.0, 5.0)))}) == 2
    assert one != table(model="another")
    assert one != table(settings="{}")
    assert one != table(((1.0, 2.0, 3.0, 4.0),))
    assert one != "a table"
    assert table(((-0.0, 1.0),)) == table(((0.0, 1.0),))
    assert copy.deepcopy(one) == one


def test_a_frozen_part_that_holds_a_table_is_hashable():
    @dataclass(frozen=True)
    class Part:
        scores: HeadScores

    assert hash(Part(table())) == hash(Part(table()))
    assert Part(table()) == Part(table())


def test_a_table_is_named_by_its_path_or_its_kind(tmp_path):
    scores = HeadScores(torch.ones(4, 3), "cokv")
    assert str(scores) == "<cokv scores, 4x3>"
    assert "4 layers x 3 kv heads" in repr(scores)
    path = scores.save(tmp_path / "a.safetensors")
    assert str(HeadScores.load(path)) == str(path)


def test_grouped_is_the_mean_over_the_query_heads_of_a_kv_head():
    scores = HeadScores(
        torch.arange(1.0, 17.0).view(2, 8), "headkv-r2", heads="query", model="m", samples=3, settings="{}"
    )
    by_kv = scores.grouped(2)
    assert by_kv.values.tolist() == [[2.5, 6.5], [10.5, 14.5]]
    assert (by_kv.heads, by_kv.method, by_kv.model, by_kv.samples) == ("kv", "headkv-r2", "m", 3)
    assert by_kv.settings == "{}"
    assert by_kv.grouped(2) is by_kv
    assert scores.grouped(8).values.equal(scores.values)
    assert scores.grouped(8).heads == "kv"


@pytest.mark.parametrize("kv_heads", [0, -2, 3, 16])
def test_grouping_that_does_not_fit(kv_heads):
    with pytest.raises(HeadScoresError, match="not a multiple"):
        HeadScores(torch.ones(2, 8), "headkv-r2", heads="query").grouped(kv_heads)


def test_kv_heads_are_not_grouped_again():
    with pytest.raises(HeadScoresError, match="8 KV heads per layer, not 2"):
        HeadScores(torch.ones(2, 8), "cokv").grouped(2)


def test_normalized_sums_to_one_over_all_layers_and_heads():
    shares = table(settings="{}").normalized()
    assert shares.settings == ""
    assert shares.values.flatten().tolist() == pytest.approx([0.1, 0.2, 0.3, 0.4])
    assert shares.normalized().values.sum().item() == pytest.approx(1)
    with pytest.raises(HeadScoresError, match=r"negative scores \(the lowest is -3 at 1-0\)"):
        table(((1.0, 5.0), (-3.0, 2.0))).normalized()


def test_mean_of_tables():
    one = table(((1.0, 2.0),), samples=3, date="2025-01-01", license="MIT", notes="task a; sizes 4", seed=1)
    other = table(((3.0, 6.0),), samples=4, date="2025-02-01", license="MIT", notes="task b; sizes 4", seed=2)
    mean = HeadScores.mean([one, other])
    assert mean.values.tolist() == [[2, 4]]
    assert (mean.samples, mean.date, mean.license, mean.seed) == (7, "2025-02-01", "MIT", None)
    assert mean.notes == "mean of 2 tables; task a; sizes 4; task b"
    assert HeadScores.mean([one]) is one
    asked = [replace(each, settings='{"seed": 1}') for each in (one, other)]
    assert HeadScores.mean(asked).settings == '{"seed": 1}'
    assert HeadScores.mean([asked[0], other]).settings == ""
    assert HeadScores.mean([one, replace(other, samples=None)]).samples is None


@pytest.mark.parametrize(
    "other",
    [
        table(((1.0, 2.0, 3.0),)),
        table(((1.0, 2.0),), heads="query"),
        table(((1.0, 2.0),), model="x"),
        table(((1.0, 2.0),), "random"),
    ],
)
def test_only_tables_of_one_kind_have_a_mean(other):
    with pytest.raises(HeadScoresError, match="of one model and method"):
        HeadScores.mean([table(((1.0, 2.0),)), other])


def test_no_tables_have_no_mean():
    with pytest.raises(HeadScoresError, match="at least one"):
        HeadScores.mean([])


def test_earlier_names_are_understood():
    made = HeadScores(torch.ones(2, 2), "random", licence="MIT")
    assert made.license == made.licence == "MIT"
    assert replace(made, licence="ISC").license == "ISC"
    assert replace(made, notes="kept").license == "MIT"
    torch.testing.assert_close(made.normalised().values, made.normalized().values)
    with pytest.raises(TypeError, match="owner"):
        HeadScores(torch.ones(2, 2), "random", owner="MIT")


def test_scores_without_a_finite_sum():
    with pytest.raises(HeadScoresError, match="no finite sum"):
        HeadScores(torch.full((2, 2), 1e308, dtype=torch.float64), "random")


def test_a_mean_is_of_no_file(tmp_path):
    tables = [HeadScores.load(table([[1.0, each]]).save(tmp_path / f"{each}.safetensors")) for each in (2.0, 3.0)]
    assert tables[0].path is not None
    assert HeadScores.mean(tables).path is None
    assert str(HeadScores.mean(tables)) == "<cokv scores, 1x2>"


def test_large_scores_of_both_signs_have_no_sum_either():
    with pytest.raises(HeadScoresError, match="no finite sum"):
        table([[1.5e308, -1.5e308]])
