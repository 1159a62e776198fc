"""Cosines between queries by hand."""

from __future__ import annotations

import pytest
import torch

from winnow.diagnostics.similarity import mean_cosine, query_cosines


def test_cosines_of_known_queries():
    east, north = [1.0, 0.0], [0.0, 2.0]
    assert mean_cosine(torch.tensor([[east, east, north]])) == pytest.approx(1 / 3)
    assert mean_cosine(torch.tensor([[east, east], [east, north]])) == pytest.approx(0.5)
    assert mean_cosine(torch.tensor([[east]])) is None


def test_every_pair_has_its_cosine():
    """A matrix for each head, of queries of any length."""
    east, north, both = [3.0, 0.0], [0.0, 0.5], [2.0, 2.0]
    found = query_cosines(torch.tensor([[east, north, both]]))
    half = 0.5**0.5
    torch.testing.assert_close(found, torch.tensor([[[1, 0, half], [0, 1, half], [half, half, 1]]]).double())
