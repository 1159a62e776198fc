"""A token of every row, written into the tail at a place that the device knows: keys and values in one launch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from winnow.kernels.gpu.tiles import power_of_two


@triton.jit
def keep_token(
    places, keys, key_row, key_head, values, value_row, value_head,
    held_keys, held_key_row, held_key_head, held_values, held_value_row, held_value_head, heads,
    DIM: tl.constexpr, VALUE_DIM: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """A key and a value of a row's head, at the row's place; strides are those of rows and heads."""
    row, head = tl.program_id(0).to(tl.int64) // heads, tl.program_id(0).to(tl.int64) % heads
    place, channel = tl.load(places + row), tl.arange(0, WIDE)
    key = tl.load(keys + row * key_row + head * key_head + channel, mask=channel < DIM)
    value = tl.load(values + row * value_row + head * value_head + channel, mask=channel < VALUE_DIM)
    held = held_keys + row * held_key_row + head * held_key_head + place * DIM
    tl.store(held + channel, key, mask=channel < DIM)
    held = held_values + row * held_value_row + head * held_value_head + place * VALUE_DIM
    tl.store(held + channel, value, mask=channel < VALUE_DIM)


def keep(places: Tensor, keys: Tensor, values: Tensor, held_keys: Tensor, held_values: Tensor) -> None:
    """Writes keys [R, H, 1, D] and values [R, H, 1, Dv] into held ones [R, H, C, D or Dv], at places [R] int64.

    The last two dimensions of what is held are contiguous; numbers of keys and values lie one after another.
    """
    rows, heads, _, dim = keys.shape
    value_dim = values.shape[-1]
    with torch.cuda.device_of(held_keys):  # Triton launches on the current one
        keep_token[(rows * heads,)](
            *(places, keys, *keys.stride()[:2], values, *values.stride()[:2]),
            *(held_keys, *held_keys.stride()[:2], held_values, *held_values.stride()[:2], heads),
            DIM=dim,
            VALUE_DIM=value_dim,
            WIDE=power_of_two(max(dim, value_dim)),
            num_warps=1,
        )
