"""Sets of kept tokens by hand: diversity and overlap."""

from __future__ import annotations

import pytest
import torch

from winnow.diagnostics.kept import kept_mask, overlap, retained_diversity
from winnow.diagnostics.pairs import mean_over_pairs
from winnow.select import Selection


def test_kept_sets():
    selection = Selection(torch.tensor([0, 2, 3, 2, 3, 4]), torch.tensor([0, 3, 6, 6, 6]))
    mask = kept_mask(selection, 8)
    assert mask.int().tolist() == [
        [1, 0, 1, 1, 0, 0, 0, 0],
        [0, 0, 1, 1, 1, 0, 0, 0],
        [0] * 8,
        [0] * 8,
    ]
    assert retained_diversity(mask) == 0.5
    assert overlap(mask).tolist() == [[1, 0.5, 0, 0], [0.5, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]
    assert mean_over_pairs(overlap(mask)) == pytest.approx(1 / 12)
