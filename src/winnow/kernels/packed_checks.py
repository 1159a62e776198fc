"""Whether the tensors of a packed block fit together, as far as that takes no time: the kernels read raw memory."""

from __future__ import annotations

import torch
from torch import Tensor

from winnow.kernels.bits import WIDTHS, row_bytes
from winnow.kernels.packed import GROUP, STEP, Entries, PackedBlock, PackedKeys, PackedValues, Pruned


def check_packed(block: PackedBlock) -> None:
    """Raise ValueError where a tensor has the wrong shape, dtype or place.

    How many channels a slot's mask keeps is not looked at: the kernels read no further than the tensors go.
    """
    for name, rows in (("keys", block.keys), ("values", block.values)):
        _check_entries(block, name, rows)
        if rows.pruned is not None:
            _check_pruned(block, name, rows, rows.pruned)


def _check_entries(block: PackedBlock, name: str, rows: PackedKeys | PackedValues) -> None:
    entries, pruned, slots = rows.entries, rows.pruned, block.slots
    if entries.bits not in (16, *WIDTHS):
        raise ValueError(f"{name} have {entries.bits} bits; known are 16, 8, 4 and 2")
    kept = rows.dim
    if isinstance(rows, PackedKeys) and rows.channels is not None:
        if pruned is not None:
            raise ValueError("keys have channels per head or masks per slot, not both")
        kept = _check_channels(block, rows.channels)
    dtype = block.dtype if entries.bits == 16 else torch.uint8
    shape: tuple[int | None, ...] = (slots, kept if entries.bits == 16 else row_bytes(kept, entries.bits))
    if pruned is not None:
        shape = (slots, None) if pruned.starts is None else (None,)
    _check(block, f"entries of {name}", entries.data, dtype, shape)
    if entries.bits != 16:
        _check_scales(block, name, entries, kept, pruned is not None)


def _check_channels(block: PackedBlock, channels: Tensor) -> int:
    """Channels that every slot of a head keeps."""
    _check(block, "channels", channels, torch.int16, (len(block.starts), None))
    if channels.numel() and (int(channels.min()) < 0 or int(channels.max()) >= block.key_dim):
        raise ValueError(f"channels must be in 0 ... {block.key_dim - 1}")
    return channels.shape[1]


def _check_scales(block: PackedBlock, name: str, entries: Entries, kept: int, masked: bool) -> None:
    shape: tuple[int, ...] = (block.slots,)
    if entries.zeros is not None:
        if masked:
            raise ValueError(f"{name} with masks per slot have one scale per slot and no zeros")
        shape = (block.slots, -(-kept // GROUP))
        if name == "keys":
            shape = (block.slots // GROUP, kept)
            if bool((block.offsets % GROUP).any()):
                raise ValueError(f"offsets {block.offsets.tolist()} of grouped keys must be multiples of {GROUP}")
        _check(block, f"zeros of {name}", entries.zeros, block.dtype, shape)
    if entries.scales is None:
        raise ValueError(f"{name} of {entries.bits} bits have no scales")
    _check(block, f"scales of {name}", entries.scales, block.dtype, shape)


def _check_pruned(block: PackedBlock, name: str, rows: PackedKeys | PackedValues, pruned: Pruned) -> None:
    slots, heads = block.slots, len(block.starts)
    if pruned.recovery not in ("degenerate", "gaussian", "exponential"):
        raise ValueError(f"unknown recovery {pruned.recovery!r}")
    _check(block, f"masks of {name}", pruned.masks, torch.uint8, (slots, -(-rows.dim // 8)))
    statistics = 2 if pruned.recovery == "gaussian" else pruned.stats.shape[-1]
    _check(block, f"statistics of {name}", pruned.stats, block.dtype, (slots, max(statistics, 1)))
    if pruned.inverse_norms is not None:
        _check(block, f"norms of {name}", pruned.inverse_norms, torch.float32, (heads, rows.dim))
    if pruned.signs is not None:
        _check(
            block, f"signs of {name}", pruned.signs, torch.uint8, (slots, None) if pruned.starts is None else (None,)
        )
    if pruned.starts is not None:
        _check(block, f"starts of {name}", pruned.starts, torch.int64, (-(-slots // STEP), 2))
        sizes = torch.tensor([rows.entries.data.nbytes, 0 if pruned.signs is None else pruned.signs.nbytes])
        starts = pruned.starts if pruned.signs is not None else pruned.starts[:, :1]
        if bool((starts < 0).any() or (starts > sizes.to(starts.device)[: starts.shape[1]]).any()):
            raise ValueError(f"starts of {name} must lie inside their entries and signs")


def _check(block: PackedBlock, what: str, tensor: Tensor, dtype: torch.dtype, shape: tuple[int | None, ...]) -> None:
    """Raise ValueError unless a tensor has this dtype and shape (None: any size) and lies flat beside the others."""
    fits = tensor.ndim == len(shape) and all(
        size is None or size == found for size, found in zip(shape, tensor.shape, strict=True)
    )
    if not fits or tensor.dtype != dtype:
        sizes = ["any" if size is None else size for size in shape]
        raise ValueError(f"{what} are {tensor.dtype} {list(tensor.shape)} and must be {dtype} {sizes}")
    if tensor.device != block.device or not tensor.is_contiguous():
        raise ValueError(f"{what} must be contiguous and on {block.device}")
