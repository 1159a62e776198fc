"""Memory that weights will take, told by a model's skeleton before they are read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from winnow.models.int8 import Int8Linear
from winnow.models.quantized import QuantizedLinear
from winnow.models.room import Room
from winnow.models.roundable import embeds_plainly, fewest_bits, holds_experts, is_linear, weights_to_round
from winnow.models.rounding import kind_for

_FEWEST = {"auto": None, "int8": 8, "int4": 4}
"""Bits that weights are rounded to where their shapes fit, by the names of weights; None where they stay."""


class _RoomOnPaper(Room):
    """Room of a size, and no memory."""

    def staying(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        return torch.empty(*shape, dtype=dtype, device="meta")


def weight_bytes(skeleton: PreTrainedModel, weights: str = "auto") -> int | None:
    """Bytes of all parameters of a model once they are loaded; None for weights of a name that it does not know.

    skeleton: the model without its weights, as of `open_skeleton`, in the dtypes that they will have. weights: "auto"
    where they stay plain, "int8" or "int4" where layers get fewer bits, as by `quantize_weights`. A parameter that
    several modules share takes its bytes once.
    """
    if weights not in _FEWEST:
        return None
    fewest = _FEWEST[weights]
    kinds = {} if fewest is None else dict(_rounded(skeleton, fewest))
    # A parameter that has few bits in one module may stay plain in another one.
    found: dict[tuple[nn.Parameter, bool], int] = {}
    for module in skeleton.modules():
        for name, parameter in module.named_parameters(recurse=False):
            kind = kinds.get((module, name))
            stored = [parameter] if kind is None else _stored(kind, module, parameter)
            found[parameter, kind is not None] = sum(each.nbytes for each in stored)
    return sum(found.values())


def _rounded(skeleton: PreTrainedModel, fewest: int) -> Iterator[tuple[tuple[nn.Module, str], type[QuantizedLinear]]]:
    """Parameters that become layers of few bits, each by its module and its name there."""
    head, embedding = skeleton.get_output_embeddings(), skeleton.get_input_embeddings()
    for path, layer, name in weights_to_round(skeleton):
        shape = _shape_by_output(layer, layer.get_parameter(name))
        least = 8 if layer is head else fewest_bits(path.rpartition(".")[2])
        yield (layer, name), kind_for(max(fewest, least), shape)
    if embeds_plainly(embedding):
        tied = head is not None and getattr(head, "weight", None) is embedding.weight
        if not tied or is_linear(head):
            yield (embedding, "weight"), Int8Linear


def _stored(kind: type[QuantizedLinear], module: nn.Module, weight: nn.Parameter) -> Sequence[Tensor]:
    return kind.room_for(_shape_by_output(module, weight), weight.dtype, _RoomOnPaper())


def _shape_by_output(module: nn.Module, weight: nn.Parameter) -> Sequence[int]:
    """[..., O, I] of a weight, which experts may have transposed."""
    return weight.mT.shape if holds_experts(module) and module.is_transposed else weight.shape
