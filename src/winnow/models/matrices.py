"""The matrix that a linear layer multiplies by, whatever it is written as."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from winnow.models.quantized import QuantizedLinear

_PLAIN = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def has_matrix(layer: nn.Module) -> bool:
    """True if the weight of a layer can be read: plain, of `quantize_weights`, or of a library that writes it out."""
    if isinstance(layer, QuantizedLinear):
        return True
    weight: Any = getattr(layer, "weight", None)
    if type(weight) is nn.Parameter:
        return weight.dtype in _PLAIN and weight.dim() == 2
    return isinstance(weight, Tensor) and weight.dim() == 2 and _written_by_library(weight)


def dtype_of(layer: nn.Linear | QuantizedLinear) -> torch.dtype:
    """The dtype that a layer takes and gives, whatever its weight is written as."""
    dtype: torch.dtype = layer.scales.dtype if isinstance(layer, QuantizedLinear) else layer.weight.dtype
    return dtype


def matrix_of(layer: nn.Module) -> Tensor:
    """The weight [O, I] (of Conv1D [I, O]) of a layer that `has_matrix`; a view where it is plain."""
    weight: Any = layer.weight
    weight = weight.detach()
    return weight.dequantize() if _written_by_library(weight) else weight


def _written_by_library(weight: Tensor) -> bool:
    """True for tensors of torchao, quanto and the like, which know how to become plain ones."""
    # Every tensor has a `dequantize`, which fails for all but torch's own quantized ones.
    return type(weight).dequantize is not Tensor.dequantize
