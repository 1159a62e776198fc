"""Cells of runs: what makes another one."""

from __future__ import annotations

from pathlib import Path

import torch

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
