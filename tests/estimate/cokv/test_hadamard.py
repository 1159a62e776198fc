"""Hadamard matrices of the orders that there are."""

from __future__ import annotations

import pytest
import torch

from winnow.estimate.cokv.hadamard import hadamard


@pytest.mark.parametrize("order", [1, 2, 4, 8, 12, 16, 20, 24, 28, 36, 48, 64, 96, 224, 256, 288, 512])
def test_hadamard_matrices(order: int) -> None:
    matrix = hadamard(order)
    assert matrix is not None
    assert torch.equal(matrix @ matrix.T, order * torch.eye(order, dtype=torch.int64))
    assert matrix[0].tolist() == [1] * order


@pytest.mark.parametrize("order", [0, 3, 6, 18, 52])
def test_no_hadamard_matrix(order: int) -> None:
    assert hadamard(order) is None
