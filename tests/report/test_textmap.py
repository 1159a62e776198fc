"""A map of head scores in characters."""

from __future__ import annotations

import torch

from support.head_scores import table
from winnow.heads import (
    HeadScores,
)
from winnow.report.textmap import squeezed, text_map


def test_text_map():
    assert text_map(table(((0.0, 0.5, 1.0), (1.0, 0.0, 0.0)))) == ["  0   +@", "  1  @"]
    wide = HeadScores(torch.arange(1, 301.0).view(2, 150), "x")
    lines = text_map(wide, width=80)
    assert [len(line) for line in lines] == [80, 80]
    assert lines[1].endswith("@")


def test_neighbors_are_squeezed_by_their_highest_and_none_is_left_out() -> None:
    assert squeezed(torch.arange(10.0)[None], 4).tolist() == [[2, 5, 8, 9]]
    assert squeezed(torch.arange(10.0)[None], 10).tolist() == [list(range(10))]
    assert squeezed(torch.arange(10.0)[None], 9).shape == (1, 5)
