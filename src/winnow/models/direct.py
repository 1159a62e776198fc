"""Linear layers that multiply few rows of bfloat16 without copying their weight first."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from winnow.models.dtypes import cpu_has_tiles
from winnow.models.lines import begin_with_lines

FEW = 32
"""Rows of inputs up to which a copy of the weight costs more than the transposed product."""


class DirectLinear(nn.Linear):
    """A linear layer with the weight on the left of its product where inputs have few rows: a token, a small batch.

    On processors with tiles (AMX) oneDNN puts the right side of a product of bfloat16 in another order, every time. On
    the right lies the weight, which for one row is all that there is to read. On the left it is read as it is stored.
    """

    @classmethod
    def of(cls, linear: nn.Linear) -> DirectLinear:
        """A layer with the parameters of another one."""
        made = cls(linear.in_features, linear.out_features, linear.bias is not None, device="meta")
        made.weight, made.bias = linear.weight, linear.bias
        return made.train(linear.training)

    def forward(self, inputs: Tensor) -> Tensor:
        """inputs [..., I] -> [..., O]"""
        weight = self.weight
        plain = type(weight) is nn.Parameter and inputs.is_cpu and inputs.dtype == weight.dtype == torch.bfloat16
        if not plain or inputs.numel() > FEW * self.in_features:
            return super().forward(inputs)
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


def read_weights_directly(model: nn.Module) -> None:
    """Has the linear layers of a model in bfloat16 multiply few rows without copying their weight, in place.

    Parameters, their names, and what the layers compute stay, the last bit of outputs aside. Layers in other dtypes, on
    other devices, of libraries, or on processors without tiles are left as they are: there it would be no faster.
    Parameters may move in memory (`begin_with_lines`).
    """
    if not cpu_has_tiles():
        return
    replaced = False
    for parent in list(model.modules()):
        for name, layer in list(parent.named_children()):
            # Of a single input torch rounds the product before it adds the bias.
            if type(layer) is nn.Linear and layer.in_features > 1 and _is_plain(layer.weight):
                setattr(parent, name, DirectLinear.of(layer))
                replaced = True
    if replaced:
        begin_with_lines(model)


def _is_plain(weight: Tensor) -> bool:
    return type(weight) is nn.Parameter and weight.device.type == "cpu" and weight.dtype == torch.bfloat16
