"""Budget curves in a file: the same table back, and every way for the file to be wrong."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

from winnow.heads import BudgetCurves, HeadScores, HeadScoresError


def table(**facts) -> BudgetCurves:
    ratios = torch.rand(99, 3, 2, generator=torch.Generator().manual_seed(0))
    return BudgetCurves(ratios, **facts)


def test_a_saved_table_is_read_back(tmp_path: Path) -> None:
    facts = {"scorer": "snapkv", "model": "one", "samples": 7, "date": "2026-11-22", "license": "MIT", "notes": "n"}
    made = table(**facts, settings='{"a": 1}')
    read = BudgetCurves.load(made.save(tmp_path / "curves.safetensors"))
    assert read == made
    assert hash(read) == hash(made)
    assert str(read) == str(tmp_path / "curves.safetensors")
    assert read != table()
    assert made.shape == (3, 2)
    assert "snapkv" in repr(made)


@pytest.mark.parametrize(
    "ratios",
    [
        torch.rand(98, 3, 2),
        torch.rand(99, 3),
        torch.rand(99, 0, 2),
        torch.rand(99, 3, 2) + 0.5,
        torch.full((99, 3, 2), torch.nan),
        torch.full((99, 3, 2), -0.1),
    ],
)
def test_tables_that_are_none_are_refused(ratios: torch.Tensor) -> None:
    with pytest.raises(HeadScoresError):
        BudgetCurves(ratios)


def write(path: Path, header: object | None, name: str = "ratios") -> Path:
    metadata = {} if header is None else {"winnow_budget_curves": json.dumps(header)}
    path.write_bytes(safetensors.torch.save({name: torch.rand(99, 2, 2)}, metadata=metadata))
    return path


@pytest.mark.parametrize(
    ("header", "name"),
    [
        (None, "ratios"),
        ({"version": 2}, "ratios"),
        ({"version": 1, "model": 3}, "ratios"),
        ({"version": 1, "samples": "many"}, "ratios"),
        ([1], "ratios"),
        ({"version": 1}, "scores"),
    ],
)
def test_files_of_something_else_are_refused(tmp_path: Path, header: object, name: str) -> None:
    with pytest.raises(HeadScoresError, match=r"curves\.safetensors"):
        BudgetCurves.load(write(tmp_path / "curves.safetensors", header, name))


def test_damaged_and_foreign_files_are_refused(tmp_path: Path) -> None:
    path = table().save(tmp_path / "curves.safetensors")
    path.write_bytes(path.read_bytes()[:-9])
    np.save(tmp_path / "objects.npy", np.array([{}, 1], dtype=object), allow_pickle=True)
    (tmp_path / "short.npy").write_bytes(b"\x93NUM")
    np.save(tmp_path / "other.npy", np.zeros((4, 4)))
    scores = HeadScores(torch.rand(2, 2), "random").save(tmp_path / "scores.safetensors")
    for wrong in (path, tmp_path / "objects.npy", tmp_path / "short.npy", tmp_path / "other.npy", scores, tmp_path):
        with pytest.raises(HeadScoresError):
            BudgetCurves.load(wrong)
    for name in (tmp_path, tmp_path / "curves.npy"):
        with pytest.raises(HeadScoresError, match=r"saved as|is a directory"):
            table().save(name)


def test_published_tables_with_a_shape_that_no_memory_holds(tmp_path: Path) -> None:
    path = tmp_path / "c.npy"
    np.save(path, np.zeros((99, 1, 1)))
    path.write_bytes(
        path.read_bytes().replace(b"(99, 1, 1), }" + b" " * 24, b"(99, 1000000000000, 100000), }" + b" " * 7)
    )
    with pytest.raises(HeadScoresError, match="cannot be read as a published table"):
        BudgetCurves.load(path)
    np.save(path, np.full((99, 2, 2), 0.5j))
    with pytest.raises(HeadScoresError, match="complex128, not numbers"):
        BudgetCurves.load(path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(HeadScoresError, match="not a regular file"):
        BudgetCurves.load(path)


def test_a_table_is_a_copy_of_what_was_given() -> None:
    given = torch.full((99, 1, 2), 0.5, dtype=torch.float64)
    found = BudgetCurves(given)
    given.zero_()
    assert found.ratios.unique().tolist() == [0.5]
