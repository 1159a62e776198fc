"""Linear layers that read their weight where it lies where inputs have few rows: a token, a small batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self

import torch
from torch import Tensor, nn

from winnow.models.replacing import hooks_of


class DirectLinear(nn.Linear, ABC):
    """A linear layer that multiplies few rows in its own way, and all else as torch does."""

    @classmethod
    def of(cls, linear: nn.Linear) -> Self:
        """A layer with the parameters and hooks of another one."""
        made = cls(linear.in_features, linear.out_features, linear.bias is not None, device="meta")
        made.weight, made.bias = linear.weight, linear.bias
        vars(made).update(hooks_of(linear))
        return made.train(linear.training)

    @staticmethod
    @abstractmethod
    def few(dtype: torch.dtype) -> int:
        """Rows up to which its own way is faster, 0 for a dtype in which it is not."""

    @abstractmethod
    def forward(self, inputs: Tensor) -> Tensor:
        """inputs [..., I] -> [..., O]"""
