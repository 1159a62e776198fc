"""Head scores in a file of Winnow's own: the same table back, and every way for the file to be wrong."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from support.head_scores import table
from winnow.heads import BudgetCurves, HeadScores, HeadScoresError, QueryCenters, read_scores

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
        ("file/a.safetensors", "is a file; give a folder"),
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
        ({"version": 2, "method": "cokv"}, {}, "format version 2, but this Winnow reads version 1"),
        ({"method": "cokv"}, {}, "format version None"),
        ({"version": 1}, {}, "header names no method"),
        ("{", {}, "header: not JSON"),
        ("[1]", {}, "header: not a JSON object"),
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


def test_load_is_for_our_own_format(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("1\t0\n")
    with pytest.raises(HeadScoresError, match="winnow heads convert"):
        HeadScores.load(path)


@pytest.mark.parametrize("kind", [HeadScores, BudgetCurves, QueryCenters])
def test_only_regular_files_are_opened(tmp_path, kind):
    """Reading a pipe inside of safetensors could not even be interrupted."""
    os.mkfifo(tmp_path / "a.safetensors")
    with pytest.raises(HeadScoresError, match="not a regular file"):
        kind.load(tmp_path / "a.safetensors")
    with pytest.raises(HeadScoresError, match="There is no file"):
        kind.load(tmp_path / "b.safetensors")
    with pytest.raises(HeadScoresError, match="is a directory"):
        kind.load(tmp_path)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.bool])
def test_numbers_of_types_that_no_table_has(tmp_path, dtype):
    path = tmp_path / "a.safetensors"
    header = json.dumps({"version": 1, "method": "random", "heads": "kv"})
    safetensors.torch.save_file({"scores": torch.ones(2, 2).to(dtype)}, path, {"winnow_head_scores": header})
    with pytest.raises(HeadScoresError, match="save the table again"):
        HeadScores.load(path)


def test_what_could_not_be_read_again_is_not_written(tmp_path):
    """Bytes of a command line that are not UTF-8."""
    with pytest.raises(HeadScoresError, match="could not be read again"):
        table(notes="caf\udce9").save(tmp_path / "a.safetensors")
    with pytest.raises(HeadScoresError, match=r"caf\\xe9.safetensors is not a UTF-8 name"):
        table().save(tmp_path / "caf\udce9.safetensors")
    assert list(tmp_path.iterdir()) == []


def test_a_home_is_meant_by_its_sign(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    curves = BudgetCurves(torch.full((99, 1, 2), 0.5))
    centers = QueryCenters(torch.ones(1, 2, 4), torch.ones(1, 2, 4))
    for name, made in (("a", table()), ("b", curves), ("c", centers)):
        path = tmp_path / f"{name}.safetensors"
        assert made.save(f"~/{path.name}") == path
        assert type(made).load(f"~/{path.name}").path == path
    assert not (tmp_path / "~").exists()
