"""Head scores: what a table accepts, its file, the published formats against their definitions, comparison."""

from __future__ import annotations

import copy
import io
import json
import math
import pickle
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import combinations, permutations
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

import winnow
from winnow.errors import WinnowError
from winnow.heads import (
    HeadScores,
    HeadScoresError,
    rank_correlation,
    read_cokv,
    read_duo,
    read_headkv,
    read_scores,
    read_tables,
    summarize,
    top_heads,
    top_overlap,
)
from winnow.report.shades import scale_of
from winnow.report.textmap import text_map

DATA = Path(__file__).parents[1].parent / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the published tables are not here")
R2 = DATA / "headkv_scores" / "Meta-Llama-3-8B-Instruct_retrieval_reasoning_heads.json"
COKV = DATA / "cokv_scores"
DUO = DATA / "duo_patterns"


def table(values: object = ((1.0, 2.0), (3.0, 4.0)), method: str = "cokv", **facts) -> HeadScores:
    return HeadScores(torch.tensor(values, dtype=torch.float64), method, **facts)


# --- the table -------------------------------------------------------------------------------------------------------


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


# --- grouping, shares, means -----------------------------------------------------------------------------------------


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


def test_normalised_sums_to_one_over_all_layers_and_heads():
    shares = table(settings="{}").normalised()
    assert shares.settings == ""
    assert shares.values.flatten().tolist() == pytest.approx([0.1, 0.2, 0.3, 0.4])
    assert shares.normalised().values.sum().item() == pytest.approx(1)
    with pytest.raises(HeadScoresError, match=r"negative scores \(the lowest is -3 at 1-0\)"):
        table(((1.0, 5.0), (-3.0, 2.0))).normalised()


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


# --- our own file ----------------------------------------------------------------------------------------------------

whole = st.integers(-(2**31), 2**31)
tables = st.builds(
    lambda values, **facts: HeadScores(torch.from_numpy(values), **facts),
    st_numpy.arrays(
        np.float64,
        st_numpy.array_shapes(min_dims=2, max_dims=2, max_side=6),
        elements=st.floats(-1e300, 1e300),
    ).filter(np.any),
    method=st.text(min_size=1).filter(str.strip),
    heads=st.sampled_from(["kv", "query"]),
    model=st.text(),
    seed=st.none() | whole,
    samples=st.none() | st.integers(1, 10**9),
    date=st.just("") | st.dates().map(str),
    license=st.text(),
    notes=st.text(),
    settings=st.just("")
    | st.dictionaries(st.text(), st.integers() | st.text() | st.lists(st.booleans())).map(json.dumps),
)


@settings(max_examples=100, deadline=None)
@given(tables)
def test_saving_and_loading_gives_the_same_table(tmp_path_factory, scores):
    path = tmp_path_factory.mktemp("scores") / "scores.safetensors"
    loaded = HeadScores.load(scores.save(path))
    assert loaded == scores
    assert loaded.values.equal(scores.values)
    assert loaded.path == path
    assert read_scores(path) == scores


def test_a_header_whose_length_looks_like_a_pickle(tmp_path):
    """0x0280 = 640 bytes of header make a file that starts like a pickle of protocol 2."""
    path = tmp_path / "a.safetensors"
    for length in range(400):
        table(notes="n" * length).save(path)
        if path.read_bytes()[:2] == b"\x80\x02":
            break
    assert path.read_bytes()[:2] == b"\x80\x02"
    assert HeadScores.load(path).notes == "n" * length


def test_saving_makes_folders_and_replaces(tmp_path):
    path = tmp_path / "new" / "a.safetensors"
    table().save(path)
    table(model="second").save(str(path))
    assert HeadScores.load(str(path)).model == "second"
    assert HeadScores.load(table().save(tmp_path / "B.SAFETENSORS")) == table()
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_where_saving_cannot_be(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder.safetensors").mkdir()
    for target, says in (
        ("a.pt", "name the file a.safetensors"),
        ("", "is a directory"),
        ("folder.safetensors", "is a directory"),
        ("file/a.safetensors", "Cannot write"),
    ):
        with pytest.raises(HeadScoresError, match=says):
            table().save(tmp_path / target)


def own_file(path: Path, header: object, name: str = "scores", values: torch.Tensor | None = None) -> Path:
    text = header if isinstance(header, str) else json.dumps(header)
    content = torch.ones(2, 2, dtype=torch.float64) if values is None else values
    safetensors.torch.save_file({name: content}, path, metadata={"winnow_head_scores": text})
    return path


@pytest.mark.parametrize(
    ("header", "options", "says"),
    [
        ({"version": 2, "method": "cokv"}, {}, "format version 2, this Winnow reads version 1"),
        ({"method": "cokv"}, {}, "format version None"),
        ({"version": 1}, {}, "header cannot be read"),
        ("{", {}, "header cannot be read"),
        ("[1]", {}, "header cannot be read"),
        ({"version": 1, "method": "cokv", "heads": "value"}, {}, '"kv" or "query"'),
        ({"version": 1, "method": "cokv"}, {"name": "weights"}, "no tensor 'scores'"),
        ({"version": 1, "method": "cokv"}, {"values": torch.full((2, 2), math.nan)}, "layer 0, head 0 is nan"),
    ],
)
def test_own_files_that_are_damaged(tmp_path, header, options, says):
    path = own_file(tmp_path / "a.safetensors", header, **options)
    with pytest.raises(HeadScoresError, match=says) as error:
        HeadScores.load(path)
    assert str(path) in str(error.value)


def test_own_files_that_are_cut_off(tmp_path):
    path = table(notes="n" * 50).save(tmp_path / "a.safetensors")
    content = path.read_bytes()
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(HeadScoresError, match="empty" if length == 0 else "damaged"):
            HeadScores.load(path)


def test_a_header_may_leave_facts_out(tmp_path):
    path = own_file(tmp_path / "a.safetensors", {"version": 1, "method": "cokv", "later": 3})
    assert HeadScores.load(path) == HeadScores(torch.ones(2, 2), "cokv")


def test_weights_of_a_model_are_no_head_scores(tmp_path):
    safetensors.torch.save_file({"scores": torch.ones(2, 2)}, tmp_path / "model.safetensors")
    with pytest.raises(HeadScoresError, match="without head scores"):
        HeadScores.load(tmp_path / "model.safetensors")


class Bomb:
    """A pickle of it would show that it was opened."""

    def __reduce__(self):
        return (pytest.fail, ("a pickle was opened",))


def saved_by_torch(path: Path) -> None:
    torch.save(Bomb(), path)


def saved_by_old_torch(path: Path) -> None:
    torch.save(Bomb(), path, _use_new_zipfile_serialization=False)


def saved_by_numpy(path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, np.array([Bomb()]), allow_pickle=True)


def pickled(protocol: int) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(pickle.dumps(Bomb(), protocol))


@pytest.mark.parametrize("read", [HeadScores.load, read_scores, read_headkv, read_cokv, read_duo])
@pytest.mark.parametrize("suffix", ["pt", "npy", "pkl", "safetensors", "json", "tsv"])
@pytest.mark.parametrize(
    ("write", "says"),
    [
        (saved_by_torch, "a zip archive"),
        (saved_by_old_torch, "a pickle"),
        (saved_by_numpy, "a NumPy file"),
        *((pickled(protocol), "a pickle") for protocol in (2, 3, 4, 5)),
        (lambda path: path.write_bytes(b"\x1f\x8b\x08\x00"), "compressed with gzip"),
        (lambda path: path.write_bytes(b"\x89HDF\r\n\x1a\n"), "an HDF5 file"),
    ],
)
def test_nothing_that_could_run_code_is_opened(tmp_path, write, says, suffix, read):
    path = tmp_path / f"scores_retrieval_heads.{suffix}"
    write(path)
    with pytest.raises(HeadScoresError, match=says):
        read(path)


@pytest.mark.parametrize("read", [HeadScores.load, read_scores, read_headkv, read_cokv, read_duo])
def test_what_is_no_file(tmp_path, read):
    (tmp_path / "empty.json").write_text("")
    (tmp_path / "a.csv").write_text("1,2\n")
    (tmp_path / "old.pkl").write_bytes(pickle.dumps([1.0], 0))
    (tmp_path / "latin.json").write_bytes(b'{"0-0": ["\xe9"]}')
    for name, says in (
        ("none.json", "There is no file"),
        ("", "is a directory"),
        ("empty.json", "is empty"),
        ("a.csv", "unknown suffix"),
        ("old.pkl", "unknown suffix"),
    ):
        with pytest.raises(HeadScoresError, match=says):
            read(tmp_path / name)
    with pytest.raises(HeadScoresError):
        read(tmp_path / "latin.json")


def test_load_is_for_our_own_format(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("1\t0\n")
    with pytest.raises(HeadScoresError, match="winnow heads convert"):
        HeadScores.load(path)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "not valid JSON"),
        ("[1, 2]", "holds a JSON list"),
        ("3", "holds a JSON int"),
        ('{"weights": [1]}', "unknown layout"),
        ("{}", "unknown layout"),
        ("[" * 100_000, "nested|not valid JSON"),
        ('{"0-0": [' + "9" * 5000 + "]}", "numbered too deep|too large"),
    ],
)
def test_json_of_an_unknown_layout(tmp_path, text, says):
    path = tmp_path / "a_retrieval_heads.json"
    path.write_text(text)
    with pytest.raises(HeadScoresError, match=says):
        read_scores(path)


# --- HeadKV ----------------------------------------------------------------------------------------------------------


def headkv_file(folder: Path, content: object, name: str = "Tiny_retrieval_reasoning_heads.json") -> Path:
    path = folder / name
    path.write_text(json.dumps(content))
    return path


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
        ({"0-0": [math.nan]}, "layer 0, head 0 is nan"),
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


# --- DuoAttention ----------------------------------------------------------------------------------------------------


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


# --- CoKV ------------------------------------------------------------------------------------------------------------

PLAYERS = 6
Coalition = frozenset[int]


def utility(coalition: Iterable[int]) -> Fraction:
    """A game in which players help, hurt and depend on each other."""
    inside = set(coalition)
    alone = sum((Fraction(player * player - 7, 10) for player in inside), Fraction(0))
    return alone + (3 if {0, 4} <= inside else 0) - (2 if {1, 2, 5} <= inside else 0) + Fraction(len(inside) ** 2, 7)


def shapley(player: int) -> Fraction:
    """The mean over all orders of what the player adds to those before it."""
    orders = list(permutations(range(PLAYERS)))
    gains = (utility(order[: order.index(player) + 1]) - utility(order[: order.index(player)]) for order in orders)
    return sum(gains, Fraction(0)) / len(orders)


def cokv_content(coalitions: Iterable[Iterable[int]]) -> dict[str, object]:
    """What the published code adds up over these coalitions of one size."""
    left, right = [Fraction(0)] * PLAYERS, [Fraction(0)] * PLAYERS
    left_count, right_count = [0] * PLAYERS, [0] * PLAYERS
    drawn = [set(coalition) for coalition in coalitions]
    for inside in drawn:
        rest = set(range(PLAYERS)) - inside
        u = utility(inside) - utility(rest)
        for player in inside:
            left[player] += u
            left_count[player] += 1
        for player in rest:
            right[player] -= u
            right_count[player] += 1
    return {
        "n_players": PLAYERS,
        "layers": 3,
        "kv_heads": 2,
        "sampling_count": len(drawn),
        "cc_left": [round(float(value), 8) for value in left],
        "count_left": left_count,
        "cc_right": [round(float(value), 8) for value in right],
        "count_right": right_count,
    }


def cokv_file(folder: Path, content: object, name: str = "cc_game_2.json") -> Path:
    path = folder / name
    path.write_text(json.dumps(content))
    return path


def all_of_size(size: int) -> list[tuple[int, ...]]:
    return list(combinations(range(PLAYERS), size))


def test_all_sizes_give_the_shapley_value(tmp_path):
    """The sizes 1 to n - 1 from files of 1 to n / 2 and both halves; size n gives every player U(all) - U(none)."""
    files = [
        cokv_file(tmp_path, cokv_content(all_of_size(size)), f"cc_game_{size}.json")
        for size in range(1, PLAYERS // 2 + 1)
    ]
    scores = read_cokv(files)
    together = utility(range(PLAYERS)) - utility(())
    exact = [float((shapley(player) * PLAYERS - together) / (PLAYERS - 1)) for player in range(PLAYERS)]
    assert scores.values.flatten().tolist() == pytest.approx(exact, abs=1e-7)
    assert scores.shape == (3, 2)
    assert scores.samples == 6 + 15 + 20
    assert (scores.method, scores.heads) == ("cokv", "kv")
    assert scores.notes == "task game; coalition sizes 1, 2, 3, 4, 5"
    assert scores.path is None


def test_first_half_is_the_sum_over_the_count_per_size(tmp_path):
    contents = [cokv_content(all_of_size(size)[::2]) for size in (2, 3)]
    files = [
        cokv_file(tmp_path, content, f"cc_game_{size}.json") for size, content in zip((2, 3), contents, strict=True)
    ]
    by_size = [np.array(content["cc_left"]) / np.array(content["count_left"]) for content in contents]
    scores = read_scores(files, halves="first")
    assert scores.values.flatten().tolist() == pytest.approx(((by_size[0] + by_size[1]) / 2).tolist())
    assert scores.notes.endswith("coalition sizes 2, 3 (first half only)")


def test_half_of_the_players_pool_both_halves(tmp_path):
    content = cokv_content(all_of_size(3)[:12])
    scores = read_cokv(cokv_file(tmp_path, content))
    sums = np.array(content["cc_left"]) + np.array(content["cc_right"])
    assert scores.values.flatten().tolist() == pytest.approx((sums / 12).tolist())
    assert scores.samples == 12


def test_shards_of_one_size_are_pooled(tmp_path):
    coalitions = all_of_size(3)
    whole_file = read_cokv(cokv_file(tmp_path, cokv_content(coalitions), "all.json"))
    shards = [
        cokv_file(tmp_path, cokv_content(part), f"{index}.json")
        for index, part in enumerate((coalitions[:9], coalitions[9:]))
    ]
    pooled = read_cokv(shards)
    assert pooled.values.flatten().tolist() == pytest.approx(whole_file.values.flatten().tolist(), abs=1e-7)
    assert pooled.samples == 20


def test_a_file_that_repeats_another_counts_once(tmp_path):
    content = cokv_content(all_of_size(2))
    one = cokv_file(tmp_path, content, "cc_game_2.json")
    copy_of_it = cokv_file(tmp_path, content, "cc_game_4.json")
    scores = read_cokv([one, copy_of_it])
    assert scores.values.equal(read_cokv(one).values)
    assert scores.samples == 15
    assert scores.notes.endswith("coalition sizes 2, 4; 1 of 2 files repeat another and were left out")


def test_a_player_without_a_sample_is_an_error(tmp_path):
    never = cokv_file(tmp_path, cokv_content([(0, 1), (1, 2), (2, 3), (3, 4)]))
    with pytest.raises(HeadScoresError, match=r"head 2-1 was in no sampled coalition of 2 players.*1 such"):
        read_cokv(never)
    always = cokv_file(tmp_path, cokv_content([(0, 1), (0, 2), (0, 3), (0, 4), (0, 5)]))
    with pytest.raises(HeadScoresError, match="head 0-0 was in no sampled coalition of 4 players"):
        read_cokv(always)
    assert read_cokv(always, halves="first").shape == (3, 2)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"cc_right": None}, "has no cc_right"),
        ({"layers": None, "kv_heads": None}, "has no layers and no kv_heads"),
        ({"layers": 2}, "6 players in 2 layers of 2 heads"),
        ({"layers": 0}, "layers must be a whole number of at least 1, not 0"),
        ({"sampling_count": "15"}, "sampling_count must be"),
        ({"sampling_count": True}, "sampling_count must be"),
        ({"sampling_count": 14}, "player 0 was counted 15 times in 14 samples"),
        ({"cc_left": [1.0]}, "lists of 1, 6, 6, 6"),
        ({"cc_left": 3}, "cc_left is not a list of numbers"),
        ({"count_left": ["5"] * 6}, "'5' at place 0"),
        (
            {"count_left": [6, 5, 5, 5, 5, 5], "count_right": [9, 10, 10, 10, 10, 10]},
            "mixes coalitions of several sizes",
        ),
        ({"cc_right": [100.0] * 6}, "do not cancel"),
        ({"cc_left": [math.nan] * 6}, "layer 0, head 0 is nan"),
        ({"cc_left": [0] * 6, "cc_right": [0] * 6}, "All head scores are zero"),
    ],
)
def test_cokv_files_that_are_damaged(tmp_path, change, says):
    content = {key: value for key, value in (cokv_content(all_of_size(2)) | change).items() if value is not None}
    path = cokv_file(tmp_path, content)
    with pytest.raises(HeadScoresError, match=says) as error:
        read_cokv(path)
    assert str(path) in str(error.value)


def test_cokv_files_that_do_not_belong_together(tmp_path):
    content = cokv_content(all_of_size(2))
    one = cokv_file(tmp_path, content, "cc_llama3_lcc_2.json")
    other_task = cokv_file(tmp_path, content, "cc_llama3_trec_2.json")
    other_model = cokv_file(tmp_path, content, "cc_mistral_lcc_2.json")
    for other in (other_task, other_model):
        with pytest.raises(HeadScoresError, match="different tasks or models"):
            read_cokv([one, other])
    assert len(read_tables([one, other_task, other_model])) == 3
    with pytest.raises(HeadScoresError, match="are 2 tables"):
        read_scores([one, other_task])
    turned = cokv_file(tmp_path, content | {"layers": 2, "kv_heads": 3}, "a.json")
    with pytest.raises(HeadScoresError, match="of one model"):
        read_cokv([cokv_file(tmp_path, content, "b.json"), turned])
    with pytest.raises(HeadScoresError, match="at least one"):
        read_cokv([])
    with pytest.raises(HeadScoresError, match="halves must be"):
        read_cokv(one, halves="second")


# --- comparison ------------------------------------------------------------------------------------------------------


def spearman(a: list[float], b: list[float]) -> float:
    """Pearson's correlation of the ranks, ties by their mean place."""

    def ranks(values: list[float]) -> list[float]:
        return [sum(other < x for other in values) + (sum(other == x for other in values) - 1) / 2 for x in values]

    first, second = ranks(a), ranks(b)
    middle = (len(a) - 1) / 2
    shared = sum((x - middle) * (y - middle) for x, y in zip(first, second, strict=True))
    spread = math.sqrt(sum((x - middle) ** 2 for x in first) * sum((y - middle) ** 2 for y in second))
    return shared / spread if spread else math.nan


few_levels = st.lists(st.integers(-2, 3), min_size=12, max_size=12).filter(any)


@settings(max_examples=100, deadline=None)
@given(few_levels, few_levels)
def test_rank_correlation_against_its_definition(a, b):
    one, other = (HeadScores(torch.tensor(values).view(3, 4), "x") for values in (a, b))
    assert rank_correlation(one, other) == pytest.approx(spearman(a, b), nan_ok=True)
    assert rank_correlation(one, other) == pytest.approx(rank_correlation(other, one), nan_ok=True)


@settings(max_examples=100, deadline=None)
@given(few_levels, few_levels, st.integers(1, 12))
def test_top_overlap_against_sorting(a, b, k):
    def top(values: list[int]) -> set[int]:
        return set(sorted(range(12), key=lambda index: (-values[index], index))[:k])

    one, other = (HeadScores(torch.tensor(values).view(3, 4), "x") for values in (a, b))
    assert top_overlap(one, other, k=k) == len(top(a) & top(b)) / k
    assert top_overlap(one, one, k=k) == 1


def test_overlap_by_share():
    one = table(((4.0, 3.0), (2.0, 1.0)))
    other = table(((4.0, 1.0), (3.0, 2.0)))
    assert top_overlap(one, other) == 0.5
    assert top_overlap(one, other, share=0.01) == 1
    assert top_heads(other, 2) == [(0, 0), (1, 0)]
    opposite = table(((1.0, 2.0), (3.0, 4.0)))
    assert top_overlap(one, opposite) == 0
    assert rank_correlation(one, opposite) == pytest.approx(-1)


@pytest.mark.parametrize("options", [{"share": 0}, {"share": 1.1}, {"share": math.nan}, {"k": 0}, {"k": 5}])
def test_overlap_of_none_or_too_many(options):
    with pytest.raises(HeadScoresError, match="must be"):
        top_overlap(table(), table(), **options)


@pytest.mark.parametrize("compare", [top_overlap, rank_correlation])
def test_only_the_same_heads_compare(compare):
    with pytest.raises(HeadScoresError, match="only tables of the same heads compare"):
        compare(table(), table(((1.0, 2.0),)))
    with pytest.raises(HeadScoresError, match="--kv-heads"):
        compare(table(), table(heads="query"))


# --- summary and shades ----------------------------------------------------------------------------------------------


def test_summary():
    summary = summarize(table(((0.0, 5.0), (-2.0, 3.0), (2.0, 0.0))), top=2)
    assert (summary.low, summary.high, summary.total) == (-2, 5, 8)
    assert summary.mean == pytest.approx(8 / 6)
    assert (summary.zero, summary.negative) == (pytest.approx(2 / 6), pytest.approx(1 / 6))
    assert summary.half == 1  # 5 of 10
    assert [tuple(head) for head in summary.top] == [(0, 1, 5.0), (1, 1, 3.0)]


def test_summary_without_positive_scores():
    assert summarize(table(((-1.0, -2.0),))).half is None
    assert summarize(table(((1.0, 1.0, 1.0, 1.0),))).half == 2


@pytest.mark.parametrize(
    ("values", "low", "high", "power", "signed"),
    [
        (((0.0, 0.5, 1.0),), 0, 1, 1.0, False),
        (((0.1, 0.1, 0.1, 0.1, 0.1, 5.0),), 0, 5, 0.5, False),
        (((-3.0, 1.0),), -3, 3, 1.0, True),
        (((-0.01, 0.6, 1.0),), 0, 1, 1.0, False),
        (((-4.0, -2.0),), -4, -2, 1.0, False),
        (((-4.0, -4.0),), -4, -4, 1.0, False),
    ],
)
def test_scale(values, low, high, power, signed):
    scores = table(values)
    scale = scale_of([scores])
    assert tuple(scale) == (low, high, power, signed)
    levels = scale.levels(scores.values)
    assert 0 <= levels.min() <= levels.max() <= 1
    assert levels.max() == (1 if not signed else pytest.approx(4 / 6))


def test_text_map():
    assert text_map(table(((0.0, 0.5, 1.0), (1.0, 0.0, 0.0)))) == ["  0   +@", "  1  @"]
    wide = HeadScores(torch.arange(1, 301.0).view(2, 150), "x")
    lines = text_map(wide, width=80)
    assert [len(line) for line in lines] == [80, 80]
    assert lines[1].endswith("@")


# --- the published tables --------------------------------------------------------------------------------------------


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
    assert scores.normalised().values.sum().item() == pytest.approx(1)


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


@needs_data
def test_published_cokv_sums_cancel():
    """At half of the players left and right sums cancel; at other sizes they do once weighted with the sizes."""
    for path in sorted(COKV.glob("*.json"))[::5]:
        content = json.loads(path.read_text())
        left, right = math.fsum(content["cc_left"]), math.fsum(content["cc_right"])
        players = content["n_players"]
        size = sum(content["count_left"]) // content["sampling_count"]
        scale = math.fsum(map(abs, content["cc_left"]))
        assert (players - size) * left + size * right == pytest.approx(0, abs=1e-6 * players * scale)
        if 2 * size == players:
            assert left + right == pytest.approx(0, abs=1e-6 * scale)


@needs_data
def test_published_cokv_task():
    files = [COKV / f"cc_llama3_qasper_{size}.json" for size in (32, 64, 96, 128)]
    scores = read_scores(files)
    assert (scores.shape, scores.samples, scores.model) == ((32, 8), 3640, "Meta-Llama-3-8B-Instruct")
    assert "coalition sizes 32, 64, 96, 128, 160, 192, 224" in scores.notes
    content = json.loads(files[0].read_text())
    only = read_cokv(files[0])
    player = 3 * 8 + 5
    low = content["cc_left"][player] / content["count_left"][player]
    high = content["cc_right"][player] / content["count_right"][player]
    assert only.values[3, 5].item() == pytest.approx((low + high) / 2)
    assert rank_correlation(scores, read_scores(files, halves="first")) > 0.98


@needs_data
def test_published_cokv_files_that_repeat_each_other():
    files = [COKV / f"cc_llama3_trec_{size}.json" for size in (32, 64, 96, 128)]
    assert read_scores(files).values.equal(read_scores(files[1:3]).values)
    average, report = (read_cokv(COKV / f"cc_qwen3_{task}_size_256.json") for task in ("average", "gov_report"))
    assert average.values.equal(report.values)


@needs_data
def test_published_duo_pattern():
    scores = read_scores(DUO / "Mistral-7B-Instruct-v0.2.tsv")
    raw = np.loadtxt(DUO / "Mistral-7B-Instruct-v0.2.tsv")
    assert raw.min() < 0
    assert np.array_equal(scores.values.numpy(), raw.clip(0, 1))
    assert (scores.shape, scores.heads, scores.seed) == ((32, 8), "kv", 42)
    assert scores.model == "Mistral-7B-Instruct-v0.2"


def test_magic_bytes_are_those_of_the_writers(tmp_path):
    """The formats are told by what torch and numpy write today."""
    buffer = io.BytesIO()
    torch.save(torch.ones(2), buffer)
    assert buffer.getvalue()[:4] == b"PK\x03\x04"
    path = table().save(tmp_path / "a.safetensors")
    assert struct.unpack("<Q", path.read_bytes()[:8])[0] < 2**16
