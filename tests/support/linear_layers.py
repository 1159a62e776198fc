"""Random linear layers as the compiled kernels read them."""

from __future__ import annotations

import torch

from winnow.kernels.linear import Weight


def layer(outputs: int, inputs: int, bits: int, dtype: torch.dtype, bias: bool) -> Weight:
    """A random weight."""
    added = torch.randn(outputs).to(dtype) if bias else None
    if bits == 16:
        return Weight(torch.randn(outputs, inputs).to(dtype), added)
    if bits == 8:
        numbers = torch.randint(-128, 128, (outputs, inputs), dtype=torch.int8)
        return Weight(numbers, added, torch.rand(outputs).to(dtype))
    numbers = torch.randint(0, 256, (outputs, inputs // 2), dtype=torch.uint8)
    return Weight(numbers, added, torch.rand(inputs // 32, outputs, 2).to(dtype))


def behind_each_other(layers: list[Weight]) -> Weight:
    """The weights of layers as one tensor each."""
    return Weight(*(None if each[0] is None else torch.stack(each) for each in zip(*layers, strict=True)))


def random_stack(layers: int, outputs: int, inputs: int, bits: int, dtype: torch.dtype, bias: bool) -> Weight:
    """Random weights of as many layers."""
    return behind_each_other([layer(outputs, inputs, bits, dtype, bias) for _ in range(layers)])
