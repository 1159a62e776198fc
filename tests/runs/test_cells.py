"""Cells of runs: what makes another one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import winnow.runs.cells as module
from winnow.composition.names import method
from winnow.heads import HeadScores
from winnow.runs.cells import CellSpace, context_hash
from winnow.runs.groups import Group
from winnow.tasks.example import Example, Judging
from winnow.tasks.protocols import protocol


def test_another_table_under_the_same_name_makes_other_cells(tmp_path: Path) -> None:
    path, space = tmp_path / "table.safetensors", CellSpace("model", protocol("plain"))
    group = Group("b", "t", Judging("exact_match", 4), (Example("1", "c", "q", ("a",)),))

    def cells(*scores: float) -> list[list[str]]:
        HeadScores(torch.tensor([scores, scores]), "cokv").save(path)
        return space.cells(group, [method(f"cokv(scores={path}) @ 64")])

    assert cells(1.0, 2.0) == cells(1.0, 2.0) != cells(2.0, 1.0)


def test_examples_without_a_context_share_none() -> None:
    one, other = (Example(name, " ", f"question {name}", ("a",)) for name in ("1", "2"))
    assert context_hash(one) != context_hash(other)


@pytest.mark.parametrize(
    "other",
    [
        CellSpace("other", protocol("plain")),
        CellSpace("model", protocol("plain-agnostic")),
        CellSpace("model", replace(protocol("plain"), max_prompt_tokens=9)),
        CellSpace("model", protocol("plain"), fold_every=64),
        CellSpace("model", protocol("plain"), fold_every=65),
    ],
)
def test_whatever_changes_a_result_makes_other_cells(other: CellSpace) -> None:
    group = Group("b", "t", Judging("exact_match", 4), (Example("1", "c", "q", ("a",)),))
    found = [space.cells(group, [method("full")]) for space in (CellSpace("model", protocol("plain")), other)]
    assert found[0] != found[1]


def test_limits_and_versions_make_other_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group("b", "t", Judging("exact_match", 4), (Example("1", "c", "q", ("a",)),))
    space = CellSpace("model", protocol("longbench-headkv"), limit=7950)
    before = space.cells(group, [method("full")])
    assert replace(space, limit=None).cells(group, [method("full")]) != before
    # A limit of all models is in the protocol itself.
    plain = CellSpace("model", protocol("plain"))
    assert replace(plain, limit=9).cells(group, [method("full")]) == plain.cells(group, [method("full")])
    monkeypatch.setattr(module, "__version__", "0.0.0")
    assert space.cells(group, [method("full")]) != before
