"""Splitting rows with the compiled kernels: which channels stay, then, once lengths are known, what is written."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from winnow.kernels import native
from winnow.kernels.native_args import DTYPES, STATISTICS, PruneArgs, address
from winnow.kernels.pruning_reference import KeepRule, PrunedRows, SaliencyScale, Statistic


def supports(rows: Tensor) -> bool:
    """True if the native kernels can split these rows."""
    return native.reads(rows)


def prune_rows(
    rows: Tensor, rule: KeepRule, statistic: Statistic, signed: bool, scale: SaliencyScale | None = None
) -> PrunedRows:
    """As `winnow.kernels.pruning_reference.prune_rows`, for rows that are supported."""
    loaded = native.loaded_library()
    _check(rows, rule, scale)
    rows = rows if rows.stride(1) == 1 else rows.contiguous()
    slots, dim = rows.shape
    masks = torch.empty(slots, -(-dim // 8), dtype=torch.uint8, device="cpu")
    counts = torch.empty(slots, dtype=torch.int64, device="cpu")
    stats = torch.empty(slots, {"moments": 2, "pruned moments": 3}.get(statistic, 1), dtype=torch.float32, device="cpu")
    args, _alive = _arguments(rows, rule, scale)
    args.statistic = STATISTICS[statistic]
    args.masks, args.counts, args.stats = masks.data_ptr(), counts.data_ptr(), stats.data_ptr()
    _call(loaded.winnow_prune, args)
    room = _flat_rows(rows, counts, signed) if rule.share is not None else _equal_rows(rows, rule.most, signed)
    args.kept, args.signs, args.starts = address(room.kept), address(room.signs), address(room.starts)
    _call(loaded.winnow_take, args)
    return PrunedRows(room.kept, None if rule.share is None else counts, masks, stats, room.signs)


def _check(rows: Tensor, rule: KeepRule, scale: SaliencyScale | None) -> None:
    """Raise ValueError where the kernels would read or write what is not there."""
    slots, dim = rows.shape
    fits = not rule.levels or (rule.levels[-1] == rule.most and len(rule.level_bounds()) == len(rule.levels))
    if not 0 < rule.most <= dim or not fits:
        raise ValueError(f"{rule} does not fit rows of {dim} channels")
    if scale is None:
        return
    heads = len(scale.inverse_norms)
    fits = scale.inverse_norms.shape == (heads, dim) and scale.head.shape == (slots,)
    if not fits or bool((scale.head < 0).any() or (scale.head >= heads).any()):
        raise ValueError(f"norms {list(scale.inverse_norms.shape)} and their heads do not fit {slots} x {dim} numbers")


def _arguments(rows: Tensor, rule: KeepRule, scale: SaliencyScale | None) -> tuple[PruneArgs, list[Tensor]]:
    """The inputs of a call, and all that must stay alive for it."""
    args = PruneArgs(
        rows=rows.data_ptr(),
        slots=rows.shape[0],
        dim=rows.shape[1],
        row_stride=rows.stride(0),
        most=rule.most,
        share=-1.0 if rule.share is None else rule.share,
        squared=rule.squared,
        dtype=DTYPES[rows.dtype],
        threads=torch.get_num_threads(),
    )
    alive = [rows]
    if rule.levels:
        alive.append(torch.tensor([rule.levels, rule.level_bounds()], dtype=torch.int64, device="cpu"))
        args.levels, args.bounds = (each.data_ptr() for each in alive[-1])
        args.level_count = len(rule.levels)
    if scale is not None:
        alive += [scale.inverse_norms.to(torch.float32).contiguous(), scale.head.to(torch.int64).contiguous()]
        args.inverse_norms, args.head = (each.data_ptr() for each in alive[-2:])
    return args, alive


class _Room(NamedTuple):
    """Memory for kept numbers and signs."""

    kept: Tensor
    signs: Tensor | None
    starts: Tensor | None = None
    """int64 [S, 2]: the bytes at which a row's kept numbers and signs begin, where rows differ in length."""


def _equal_rows(rows: Tensor, kept: int, signed: bool) -> _Room:
    """For rows that all keep as many."""
    slots, dim = rows.shape
    signs = torch.empty(slots, -(-(dim - kept) // 8), dtype=torch.uint8, device="cpu") if signed else None
    return _Room(torch.empty(slots, kept, dtype=rows.dtype, device="cpu"), signs)


def _flat_rows(rows: Tensor, counts: Tensor, signed: bool) -> _Room:
    """For rows of different length."""
    sizes = torch.stack([counts * rows.element_size(), -(-(rows.shape[1] - counts) // 8)], 1)
    ends = sizes.cumsum(0)
    kept_bytes, sign_bytes = ends[-1].tolist() if len(ends) else (0, 0)
    kept = torch.empty(kept_bytes // rows.element_size(), dtype=rows.dtype, device="cpu")
    signs = torch.empty(sign_bytes, dtype=torch.uint8, device="cpu") if signed else None
    return _Room(kept, signs, ends - sizes)


def _call(function: Callable[..., int], args: PruneArgs) -> None:
    if function(ctypes.byref(args)):
        raise MemoryError("no memory for the scratch of pruning")
