"""Linear layers of 16 bits in float32, for processors on which torch has no library for products of 16 bits."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import linear

from winnow.models.parts import parts_of


def linear_in_float32(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """inputs [..., I], weight [O, I], bias [O] -> [..., O] in the dtype of the inputs, rounded once.

    A part of the weight is there in float32 at a time.
    """
    rows = inputs.reshape(-1, weight.shape[1]).float()
    outputs = inputs.new_empty(len(rows), len(weight))
    for part in parts_of(*weight.shape):
        outputs[:, part] = linear(rows, weight[part].float(), None if bias is None else bias[part].float())
    return outputs.view(*inputs.shape[:-1], len(weight))
