"""Cosines between queries by hand."""

from __future__ import annotations

import pytest
import torch

from winnow.diagnostics.similarity import mean_cosine


def test_cosines_of_known_queries():
    east, north = [1.0, 0.0], [0.0, 2.0]
    assert mean_cosine(torch.tensor([[east, east, north]])) == pytest.approx(1 / 3)
    assert mean_cosine(torch.tensor([[east, east], [east, north]])) == pytest.approx(0.5)
    assert mean_cosine(torch.tensor([[east]])) is None
