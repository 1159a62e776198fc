"""Weights of 4 bits: linear layers, as torch's kernel for CPUs reads them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor, nn

from winnow.errors import ModelError
from winnow.kernels import native
from winnow.kernels.linear import Weight, outputs_together
from winnow.kernels.native_args import LINEAR_OUTPUTS
from winnow.models.levels import Levels
from winnow.models.parts import PASSING, parts_of
from winnow.models.quantized import RoundedLinear
from winnow.models.room import Room

GROUP = 32
"""Weights that share a scale and a middle."""
OUTPUTS = 64
"""Outputs come in multiples of it: the largest block of the kernel."""
FEW = 48
"""Rows of inputs up to which torch's kernel for such weights is faster than to write the weight out."""
_BLOCKS = (64, 32)
"""Outputs that lie beside each other in packed weights: on processors with AVX-512, on those with AVX2."""
_LOW = 0x0F0F0F0F
_BYTES = 4


class Int4Linear(RoundedLinear):
    """A linear layer whose weight has 4 bits a value, with a scale and a middle for every 32 inputs of an output."""

    packed: nn.Parameter
    compiled_few = 128
    stored_names = ("packed", "scales")
    """[O, I/2] uint8, as torch packs them, and [I/32, O, 2], scale and middle."""

    @staticmethod
    def room_for(shape: Sequence[int], dtype: torch.dtype, room: Room) -> list[Tensor]:
        *experts, outputs, inputs = shape
        packed = room.staying((*experts, outputs, inputs // 2), torch.uint8)
        return [packed, room.staying((*experts, inputs // GROUP, outputs, 2), dtype)]

    @staticmethod
    @torch.no_grad()
    def round_into(stored: Sequence[Tensor], weight: Tensor, room: Room) -> None:
        """Weights that `fit` go to 16 levels from the least to the largest of a group.

        Raises ModelError where torch packs weights in an order that is not known.
        """
        block = block_size()
        packed, scales = stored
        for part in parts_of(len(weight), weight.shape[1], PASSING):
            groups = room.passing(weight[part], torch.float32).unflatten(1, (-1, GROUP))
            least, most = groups.amin(dim=-1), groups.amax(dim=-1)  # several times as fast as both at once
            scale = ((most - least) / 15).clamp(min=torch.finfo(weight.dtype).tiny)
            write_scales(scale, least + 8 * scale, scales[:, part])
            # Levels are of scale and middle as they are stored, not of those before they were rounded.
            scale, middle = scales[:, part].float().transpose(0, 1)[..., None].unbind(dim=2)
            groups.sub_(middle).div_(scale).add_(8).round_().clamp_(0, 15)
            _pack(room.passing(groups.flatten(1), torch.uint8), packed[part], block)

    @staticmethod
    @torch.no_grad()
    def write_levels(stored: Sequence[Tensor], part: slice, levels: Levels) -> None:
        """Writes the weights of some outputs, which are at 16 levels already, a step for every 32. Levels are changed.

        Raises ModelError as `round_into`.
        """
        packed, scales = stored
        write_scales(levels.steps, levels.at(8), scales[:, part])
        _pack(levels.levels, packed[part], block_size())

    @staticmethod
    def shape_of(stored: Sequence[Tensor]) -> tuple[int, int]:
        outputs, halves = stored[0].shape
        return outputs, 2 * halves

    @staticmethod
    def fits(shape: Sequence[int]) -> bool:
        """True if the kernel reads weights [..., O, I] of a shape."""
        outputs, inputs = shape[-2:]
        return inputs % GROUP == 0 and outputs % OUTPUTS == 0

    def compiled_weight(self) -> Weight:
        return Weight(self.parameter("packed"), self._parameters["bias"], self.parameter("scales"))

    def is_compiled(self) -> bool:
        return block_size() == outputs_together(self.scales.dtype)

    def product(self, rows: Tensor) -> Tensor | None:
        if len(rows) > FEW:
            return None
        product: Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(rows.contiguous(), self.packed, GROUP, self.scales)
        return product

    def written_out(self, part: slice, dtype: torch.dtype) -> Tensor:
        found = self._written_by_kernel(part) if dtype == self.scales.dtype else None
        return self._written_by_torch(part, dtype) if found is None else found

    def _written_by_kernel(self, part: slice) -> Tensor | None:
        if native.library() is None or self.scales.dtype != torch.bfloat16 or block_size() != LINEAR_OUTPUTS:
            return None
        plan = self.plan_for(self.scales.detach())  # as for inputs of the dtype that it is written in
        return None if plan is None else plan.written_out(part)

    def _written_by_torch(self, part: slice, dtype: torch.dtype) -> Tensor:
        levels = unpacked(self.packed[part]).unflatten(0, (-1, GROUP))
        scale, middle = self.scales[:, part].to(dtype).permute(2, 0, 1).contiguous()[:, :, None]
        return torch.addcmul(middle, levels.sub_(8).to(dtype), scale).flatten(0, 1).mT


def unpacked(packed: Tensor) -> Tensor:
    """Packed weights [O, I/2] -> levels [I, O] from 0 to 15, int8. Raises ModelError as `block_size`."""
    return _unpacked(packed, block_size())


def _unpacked(packed: Tensor, block: int) -> Tensor:
    """The same for blocks of so many outputs: of every input, first the low half of each byte, then the high one."""
    outputs, inputs = packed.shape[0], packed.shape[1] * 2
    words = packed.view(outputs // block, inputs, block // 2).view(torch.int32).transpose(0, 1).contiguous()
    halves = torch.empty(inputs, outputs // block, 2, block // 2 // _BYTES, dtype=torch.int32, device="cpu")
    torch.bitwise_and(words, _LOW, out=halves[:, :, 0])
    torch.bitwise_and(words >> 4, _LOW, out=halves[:, :, 1])
    return halves.view(torch.int8).view(inputs, outputs)


def write_scales(scale: Tensor, middle: Tensor, scales: Tensor) -> None:
    """Writes scale and middle of groups [O, I/32] to [I/32, O, 2]."""
    # One after the other is several times as fast as both, transposed.
    scales[..., 0] = scale.mT
    scales[..., 1] = middle.mT


def _pack(levels: Tensor, packed: Tensor, block: int) -> None:
    """Packs levels [O, I], uint8, as torch does, into [O, I/2]. The levels are changed."""
    low, high = levels.view(-1, 2, block // 2, levels.shape[1]).unbind(1)
    low.bitwise_or_(high.mul_(1 << 4))
    packed.view(len(low), levels.shape[1], block // 2).copy_(low.mT)


@cache
def block_size() -> int:
    """Outputs of a block, as torch packs them on this processor. Raises ModelError for an order that is not known."""
    generator = torch.Generator().manual_seed(0)
    levels = torch.randint(16, (OUTPUTS, GROUP), generator=generator, dtype=torch.int32, device="cpu")
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(levels, 1)
    for block in _BLOCKS:
        if packed.dtype == torch.uint8 and torch.equal(_unpacked(packed, block), levels.mT.to(torch.int8)):
            return block
    raise ModelError("On this processor, torch packs 4-bit weights in an order that winnow does not know; use int8.")
