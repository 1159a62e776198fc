"""Plain, slow float64 forms that oracles of several tests are written with, and the layers that they are tried on."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import torch

from winnow.view import LayerView

SHAPES = [  # heads, group, length, dim
    (1, 1, 1, 4),
    (2, 1, 3, 4),
    (2, 2, 7, 8),
    (3, 4, 30, 8),
    (1, 7, 50, 16),
    (4, 1, 65, 4),
]
MODELS = [{}, {"softcap": 1.5}, {"sinks": True}, {"softcap": 2.0, "sinks": True}]


def attention(view: LayerView) -> np.ndarray:
    """A [Hq, N, N] float64, one query at a time, from the definition of attention."""
    queries, keys = view.queries.double().numpy(), view.keys.double().numpy()
    heads, length, _ = queries.shape
    group = heads // keys.shape[0]
    result = np.zeros((heads, length, length))
    for head, row in product(range(heads), range(length)):
        logits = keys[head // group, : row + 1] @ queries[head, row] * view.scaling
        if view.softcap is not None:
            logits = view.softcap * np.tanh(logits / view.softcap)
        weights = np.exp(logits)
        extra = math.exp(float(view.sinks[head])) if view.sinks is not None else 0.0
        result[head, row, : row + 1] = weights / (weights.sum() + extra)
    return result


def reduced(values: list[np.ndarray], how: str) -> np.ndarray:
    stacked = np.stack(values)
    return {"mean": stacked.mean(0), "max": stacked.max(0), "sum": stacked.sum(0)}[how]


def pooled(values: np.ndarray, kernel: int, how: str) -> np.ndarray:
    result = np.zeros_like(values)
    for token in range(len(values)):
        near = values[max(0, token - kernel // 2) : token + kernel // 2 + 1]
        result[token] = near.max() if how == "max" else near.sum() / kernel
    return result


def assert_scores(actual: torch.Tensor, expected: np.ndarray) -> None:
    assert actual.dtype == torch.float32
    assert actual.shape == expected.shape
    np.testing.assert_allclose(actual.numpy(), expected, rtol=2e-5, atol=1e-6)
