"""Weights of 8 bits: linear layers, and embeddings, which may share the output layer's weight."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from winnow.kernels.linear import Weight
from winnow.models.parts import PASSING, parts_of
from winnow.models.quantized import RoundedLinear
from winnow.models.room import Room

FEW = 16
"""Rows of inputs up to which torch's kernel for such weights is faster than to write the weight out."""
ALIGNED = 32
"""Inputs come in multiples of it for the kernel, which reads past the end of other rows."""


class Int8Linear(RoundedLinear):
    """A linear layer whose weight has 8 bits a value and a scale for every output."""

    levels: nn.Parameter
    compiled_few = 64
    stored_names = ("levels", "scales")
    """[O, I] int8, and [O]."""

    @staticmethod
    def room_for(shape: Sequence[int], dtype: torch.dtype, room: Room) -> list[Tensor]:
        return [room.staying(shape, torch.int8), room.staying(shape[:-1], dtype)]

    @staticmethod
    @torch.no_grad()
    def round_into(stored: Sequence[Tensor], weight: Tensor, room: Room) -> None:
        """Weights of each output go to 255 levels between ± the largest."""
        levels, scales = stored
        for part in parts_of(len(weight), weight.shape[1], PASSING):
            rows = room.passing(weight[part], torch.float32)
            least, most = rows.amin(dim=1), rows.amax(dim=1)  # many times as fast as both at once
            # Levels are of the scale as it is stored, not of the one before it was rounded.
            scales[part] = (torch.maximum(-least, most) / 127).clamp(min=torch.finfo(weight.dtype).tiny)
            levels[part] = rows.div_(scales[part, None].float()).round_().clamp_(-127, 127)

    @staticmethod
    def shape_of(stored: Sequence[Tensor]) -> tuple[int, int]:
        outputs, inputs = stored[0].shape
        return outputs, inputs

    def compiled_weight(self) -> Weight:
        return Weight(self.parameter("levels"), self._parameters["bias"], self.parameter("scales"))

    def is_compiled(self) -> bool:
        return True

    def product(self, rows: Tensor) -> Tensor | None:
        if len(rows) > FEW or self.in_features % ALIGNED:
            return None
        return torch._weight_int8pack_mm(rows.contiguous(), self.levels, self.scales)

    def written_out(self, part: slice, dtype: torch.dtype) -> Tensor:
        return self.levels[part].to(dtype).mul_(self.scales[part, None].to(dtype))


class Int8Embedding(nn.Module):
    """An embedding whose tokens have 8 bits a value."""

    def __init__(self, layer: Int8Linear) -> None:
        """layer: one whose rows [V, E] are the tokens' embeddings, and whose parameters are shared."""
        super().__init__()
        self.num_embeddings, self.embedding_dim = layer.out_features, layer.in_features
        self.levels, self.scales = layer.levels, layer.scales

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens [...] -> [..., E]"""
        scales = self.scales[tokens]
        return self.levels[tokens].to(scales.dtype) * scales[..., None]

    @property
    def weight(self) -> Tensor:
        """[V, E] the whole weight."""
        return self.levels.to(self.scales.dtype) * self.scales[:, None]
