"""A map of head scores in characters."""

from __future__ import annotations

import torch

from support.head_scores import table
from winnow.heads import (
    HeadScores,
)
from winnow.report.textmap import text_map


def test_text_map():
    assert text_map(table(((0.0, 0.5, 1.0), (1.0, 0.0, 0.0)))) == ["  0   +@", "  1  @"]
    wide = HeadScores(torch.arange(1, 301.0).view(2, 150), "x")
    lines = text_map(wide, width=80)
    assert [len(line) for line in lines] == [80, 80]
    assert lines[1].endswith("@")
