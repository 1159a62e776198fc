"""Sets of kept tokens by hand: diversity and overlap."""

from __future__ import annotations

import pytest
import torch

from winnow.diagnostics.kept import head_overlap, kept_mask, retained_diversity
from winnow.diagnostics.pairs import mean_over_pairs


def test_kept_sets():
    kept = [torch.tensor(positions, dtype=torch.int64) for positions in ([0, 2, 3], [2, 3, 4], [], [])]
    mask = kept_mask(kept, 8)
    assert mask.int().tolist() == [
        [1, 0, 1, 1, 0, 0, 0, 0],
        [0, 0, 1, 1, 1, 0, 0, 0],
        [0] * 8,
        [0] * 8,
    ]
    assert retained_diversity(mask) == 0.5
    assert head_overlap(mask).tolist() == [[1, 0.5, 0, 0], [0.5, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]
    assert mean_over_pairs(head_overlap(mask)) == pytest.approx(1 / 12)
