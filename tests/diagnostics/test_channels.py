"""Key channels: variation over tokens and overlap of fixed with own ones, by hand and against float64 forms."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from support.diagnosis_oracle import oracle_channels
from support.views import random_view
from winnow.diagnostics.channels import key_channels


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("heads", "group", "length", "dim", "window"), [(1, 1, 1, 4, 8), (2, 3, 9, 8, 4), (3, 2, 50, 5, 8)]
)
def test_random_channels(heads, group, length, dim, window, dtype):
    view = random_view(heads=heads, group=group, length=length, dim=dim, dtype=dtype)
    # Channels of unlike sizes, so that fixed ones and tokens' own have something in common.
    view = view._replace(keys=view.keys * torch.linspace(1, 3, dim, dtype=dtype))
    found = key_channels(view, window)
    layer = {name: getattr(view, name).double().numpy() for name in ("queries", "keys")}
    variation, overlap = oracle_channels(layer, window)
    assert found.variation.dtype == found.overlap.dtype == torch.float64
    np.testing.assert_allclose(found.variation, variation, rtol=1e-6)
    np.testing.assert_allclose(found.overlap, overlap, rtol=1e-6)


def test_known_channels():
    """The first channel alternates, the second is always 2, the third 0, the fourth what no query asks for."""
    keys = torch.tensor([[[3.0, 2.0, 0.0, 9.0], [-1.0, 2.0, 0.0, -9.0]]])
    queries = torch.tensor([[[1.0, -1.0, 1.0, 0.0]] * 2])
    view = random_view(heads=1, group=1, length=2, dim=4)._replace(keys=keys, queries=queries)
    found = key_channels(view, 8)
    assert found.variation.tolist() == pytest.approx([(1 / 2 + 0 + 0 + 0) / 4])
    assert found.overlap.tolist() == [1.0]
