"""Linear layers for processors with tiles, where torch copies a weight in bfloat16 for every product."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from winnow.models.carrier import Carrier
from winnow.models.direct import DirectLinear

FEW = 32
"""Rows up to which a copy of the weight costs more than the transposed product."""


class TransposedLinear(DirectLinear):
    """A linear layer with the weight on the left of its product where inputs have few rows.

    On processors with tiles (AMX) oneDNN puts the right side of a product of bfloat16 in another order, every time. On
    the right lies the weight, which for one row is all that there is to read. On the left it is read as it is stored.
    """

    @staticmethod
    def few(dtype: torch.dtype) -> int:
        """Rows up to which its own way is faster, in bfloat16 only."""
        return FEW if dtype == torch.bfloat16 else 0

    def forward(self, inputs: Tensor) -> Tensor:
        """inputs [..., I] -> [..., O]"""
        if isinstance(inputs, Carrier):
            return inputs.through(self.forward, self.out_features)
        weight = self.weight
        plain = type(weight) is nn.Parameter and inputs.is_cpu and inputs.dtype == weight.dtype == torch.bfloat16
        if not plain or inputs.numel() > FEW * self.in_features:
            return nn.Linear.forward(self, inputs)
        rows = inputs.reshape(-1, self.in_features)
        outputs = self._one(rows[0]) if len(rows) == 1 else self._some(rows)
        return outputs.view(*inputs.shape[:-1], self.out_features)

    def _one(self, row: Tensor) -> Tensor:
        # As a matrix of one column torch would turn the product around again.
        return torch.mv(self.weight, row) if self.bias is None else torch.addmv(self.bias, self.weight, row)

    def _some(self, rows: Tensor) -> Tensor:
        columns = rows.mT
        if self.bias is None:
            return torch.mm(self.weight, columns).mT.contiguous()
        return torch.addmm(self.bias[:, None], self.weight, columns).mT.contiguous()
