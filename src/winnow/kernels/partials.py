"""Partial results of attention in torch: softmax numerators over some of the keys, joined by log-sum-exp."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Partial(NamedTuple):
    """Softmax numerators of P queries relative to `maximum`, not yet normalized."""

    maximum: Tensor
    """[..., P]; -inf where nothing is visible."""
    total: Tensor
    """[..., P]"""
    weighted: Tensor
    """[..., P, Dv] sums of values."""

    @classmethod
    def nothing(cls, queries: Tensor, value_dim: int) -> Partial:
        """The result of queries [..., P, D] that saw no key yet."""
        shape = queries.shape[:-1]
        return cls(queries.new_full(shape, -torch.inf), queries.new_zeros(shape), queries.new_zeros(*shape, value_dim))

    def joined(self, other: Partial) -> Partial:
        """The result over what both cover."""
        maximum = torch.maximum(self.maximum, other.maximum)
        mine, its = (torch.exp(each.maximum - finite(maximum)) for each in (self, other))
        total = mine * self.total + its * other.total
        return Partial(maximum, total, mine[..., None] * self.weighted + its[..., None] * other.weighted)

    def normalized(self, sinks: Tensor | None) -> Tensor:
        """[..., P, Dv]: the weighted means, 0 where nothing is visible; sinks [..., P] are logits without a value."""
        maximum = finite(self.maximum if sinks is None else torch.maximum(self.maximum, sinks))
        scale = torch.exp(self.maximum - maximum)
        total = scale * self.total if sinks is None else scale * self.total + torch.exp(sinks - maximum)
        return scale[..., None] * self.weighted / total.masked_fill(total == 0, 1.0)[..., None]


def finite(maximum: Tensor) -> Tensor:
    """The maximum, 0 where nothing is visible: -inf - -inf would be NaN."""
    return maximum.masked_fill(maximum == -torch.inf, 0.0)
