"""Random linear layers as the compiled kernels read them."""

from __future__ import annotations

import torch
from torch import Tensor

from winnow.kernels.linear import Weight, outputs_together


def layer(outputs: int, inputs: int, bits: int, dtype: torch.dtype, bias: bool) -> Weight:
    """A random weight."""
    added = torch.randn(outputs).to(dtype) if bias else None
    if bits == 16:
        return Weight(torch.randn(outputs, inputs).to(dtype), added)
    if bits == 8:
        numbers = torch.randint(-128, 128, (outputs, inputs), dtype=torch.int8)
        return Weight(numbers, added, torch.rand(outputs).to(dtype))
    numbers = torch.randint(0, 256, (outputs, inputs * bits // 8), dtype=torch.uint8)
    sizes = (inputs // 16, outputs) if bits == 6 else (inputs // 32, outputs, 2)
    return Weight(numbers, added, torch.rand(sizes).to(dtype))


def reads(dtype: torch.dtype, bits: int) -> bool:
    """True where kernels read weights of 4, 5 or 6 bits for inputs of a dtype: with AVX2 alone of 4."""
    together = outputs_together(dtype)
    return together > 0 and (bits == 4 or together == 64)


def levels_of(weight: Weight, together: int) -> Tensor:
    """[O, I] levels of 4, 5 or 6 bits from 0 on, int64: from the definition of their order, number by number.

    together: outputs that lie beside each other, 64 where there are more bits than 4.
    """
    bits, (outputs, inputs) = weight.bits, weight.sizes
    half, beside = together // 2, 2
    sharing = 4 // (bits - 4) if bits > 4 else 1
    groups = weight.numbers.reshape(outputs // together, inputs // 32, -1).long()
    found = torch.empty(outputs, inputs, dtype=torch.int64)
    for output in range(together):
        within, upper = output % half, output >= half
        for i in range(32):
            level = groups[:, :, i * half + within] >> (4 if upper else 0) & 15
            if bits > 4:
                run, rest = divmod(i, sharing * beside)
                place, one = divmod(rest, beside)
                byte = (within // 2 * beside + one) * 2 + within % 2
                lowest = {0: 4, 1: 0, 2: 6, 3: 2}[place] + (bits - 4 if upper else 0)
                high = groups[:, :, 32 * half + run * half * beside + byte] >> lowest & (1 << (bits - 4)) - 1
                level = level + 16 * high
            found[output::together, i::32] = level
    return found


def behind_each_other(layers: list[Weight]) -> Weight:
    """The weights of layers as one tensor each."""
    return Weight(*(None if each[0] is None else torch.stack(each) for each in zip(*layers, strict=True)))


def random_stack(layers: int, outputs: int, inputs: int, bits: int, dtype: torch.dtype, bias: bool) -> Weight:
    """Random weights of as many layers."""
    return behind_each_other([layer(outputs, inputs, bits, dtype, bias) for _ in range(layers)])
