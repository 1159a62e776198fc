"""Hadamard matrices: splits in halves that together treat every pair of players alike."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor


@lru_cache(maxsize=8)
def hadamard(order: int) -> Tensor | None:
    """[n, n] int64 of 1 and -1 with orthogonal rows, the first row all 1; None where no construction here gives one.

    Every other row is then a split of n columns in two halves, in which any two columns are on the same side in all
    but as many rows as not. Sylvester's doubling and Kronecker products, Paley's two constructions for primes: enough
    for 2^k, 12, 20, 24, 28, 36, 44, 48 and products of these.
    """
    found = _construct(order)
    return None if found is None else found * found[0]


def _construct(order: int) -> Tensor | None:
    if order <= 2:
        return torch.tensor([[1, 1], [1, -1]], device="cpu")[:order, :order] if order > 0 else None
    if order % 4:
        return None
    if _is_prime(order - 1):
        return _first_paley(order - 1)
    if _is_prime(order // 2 - 1) and (order // 2 - 1) % 4 == 1:
        return _second_paley(order // 2 - 1)
    for factor in range(2, order // 2 + 1):
        small, large = (hadamard(factor), hadamard(order // factor)) if order % factor == 0 else (None, None)
        if small is not None and large is not None:
            return torch.kron(small, large)
    return None


def _first_paley(q: int) -> Tensor:
    """Order q + 1, for a prime q that is 3 modulo 4."""
    skew = _bordered(q)
    skew[1:, 0] = -1
    return skew + torch.eye(q + 1, dtype=torch.int64, device="cpu")


def _second_paley(q: int) -> Tensor:
    """Order 2(q + 1), for a prime q that is 1 modulo 4."""
    doubled = torch.kron(_bordered(q), torch.tensor([[1, 1], [1, -1]], device="cpu"))
    unit = torch.eye(q + 1, dtype=torch.int64, device="cpu")
    return doubled + torch.kron(unit, torch.tensor([[1, -1], [-1, -1]], device="cpu"))


def _bordered(q: int) -> Tensor:
    """[q + 1, q + 1]: 1 where the difference of two numbers is a square modulo q, else -1; diagonal 0, border 1."""
    character = torch.full((q,), -1, device="cpu")
    character[torch.arange(1, q, device="cpu") ** 2 % q] = 1
    character[0] = 0
    numbers = torch.arange(q, device="cpu")
    matrix = torch.ones(q + 1, q + 1, dtype=torch.int64, device="cpu")
    matrix[1:, 1:] = character[(numbers[:, None] - numbers) % q]
    matrix[0, 0] = 0
    return matrix


def _is_prime(number: int) -> bool:
    return number > 1 and all(number % factor for factor in range(2, int(number**0.5) + 1))
