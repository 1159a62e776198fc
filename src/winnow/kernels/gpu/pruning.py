"""Chosen slots that keep channels of their own: split where they lie, to the bit as `pruning_reference.py` does.

One launch where all slots keep as many channels; where a share decides, one that chooses and, once the host knows how
much there is, one that takes.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from winnow.kernels.gpu.choosing import Splitting, kept_channels, splitting
from winnow.kernels.gpu.gathering import Chosen
from winnow.kernels.gpu.packing import NUMBERS, WARPS
from winnow.kernels.gpu.summarizing import sizes_at, store_summary, word_of
from winnow.kernels.gpu.tiles import tile_width
from winnow.kernels.pruning_reference import KeepRule, PrunedRows, SegmentRule, Statistic
from winnow.transfers import sent


@triton.jit
def choose_channels(
    rows, head_stride, token_stride, heads, tokens, norms, segments, masks, stats, counts, kept, signs, unfit, slots,
    SPLITTING: tl.constexpr, WIDE: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    """masks and stats of rows [H, N, D] at heads and tokens [S], as `PrunedRows` has them; kept and signs, or counts.

    unfit [1] becomes NaN where a number is not finite.
    """
    slot = tl.program_id(0).to(tl.int64) * SLOTS + tl.arange(0, SLOTS)
    inside = slot < slots
    channel = tl.arange(0, WIDE)
    head, token = tl.load(heads + slot, mask=inside, other=0), tl.load(tokens + slot, mask=inside, other=0)
    place = head * head_stride + token * token_stride
    numbers, sizes = sizes_at(rows, place, norms, head, channel, inside, SPLITTING)
    wrong = tl.max(tl.max((tl.abs(numbers) < float("inf")).to(tl.int32) ^ 1, 1), 0)
    tl.store(unfit, float("nan"), mask=wrong != 0)
    there = (channel < SPLITTING.dim)[None, :]
    segment = channel[None, :]
    if len(SPLITTING.segments) > 0:
        own = segments + head[:, None] * SPLITTING.dim + channel[None, :]
        segment = tl.load(own, mask=inside[:, None] & there, other=-1).to(tl.int32)
    order = tl.where(there, sizes.to(tl.int32, bitcast=True), -1)
    keep = kept_channels(order, sizes, segment, SPLITTING, SLOTS)
    for word in tl.static_range(tl.constexpr(SPLITTING.words)):
        at = masks + slot * SPLITTING.mask_bytes
        _store_word(at, word_of(keep, word, WIDE), inside, SPLITTING.mask_bytes, word)
    # The channels that the statistic is one of: all, or those that are gone.
    flags = (order >= 0).to(tl.int32)
    if not SPLITTING.all_channels:
        flags = flags & (keep ^ 1)
    store_summary(stats, rows, place, norms, head, slot, inside, sizes, flags, SPLITTING, WIDE, SLOTS)
    if SPLITTING.flat:
        tl.store(counts + slot, tl.sum(keep, 1).to(tl.int64), mask=inside)
    else:
        sign_bytes: tl.constexpr = (SPLITTING.dim - SPLITTING.most + 7) // 8
        starts, sign_starts = slot * SPLITTING.most, slot * sign_bytes
        _store_taken(kept, signs, starts, sign_starts, numbers, keep, inside, SPLITTING, WIDE)


@triton.jit
def take_channels(
    rows, head_stride, token_stride, heads, tokens, masks, starts, kept, signs, slots,
    SPLITTING: tl.constexpr, WIDE: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    """kept and signs of rows whose masks are known, from starts [S, 2] on: numbers, and bytes of signs."""
    slot = tl.program_id(0).to(tl.int64) * SLOTS + tl.arange(0, SLOTS)
    inside = slot < slots
    channel = tl.arange(0, WIDE)
    head, token = tl.load(heads + slot, mask=inside, other=0), tl.load(tokens + slot, mask=inside, other=0)
    place = head * head_stride + token * token_stride
    mask = inside[:, None] & (channel < SPLITTING.dim)[None, :]
    numbers = tl.load(rows + place[:, None] + channel[None, :], mask=mask, other=0.0).to(tl.float32)
    flags = tl.load(masks + slot[:, None] * SPLITTING.mask_bytes + channel[None, :] // 8, mask=mask, other=0)
    keep = (flags.to(tl.int32) >> (channel % 8)[None, :]) & 1
    first = tl.load(starts + 2 * slot, mask=inside, other=0)
    sign_starts = tl.load(starts + 2 * slot + 1, mask=inside, other=0)
    _store_taken(kept, signs, first, sign_starts, numbers, keep, inside, SPLITTING, WIDE)


@triton.jit
def _store_taken(
    kept, signs, starts, sign_starts, numbers, keep, inside, SPLITTING: tl.constexpr, WIDE: tl.constexpr
):  # fmt: skip
    """Kept numbers from starts [N] on, and the signs of the others from sign_starts [N] on."""
    before = tl.cumsum(keep, 1)
    stays = (keep != 0) & inside[:, None]
    tl.store(kept + starts[:, None] + before - 1, numbers.to(SPLITTING.element), mask=stays)
    if SPLITTING.signed:
        channel = tl.arange(0, WIDE)
        negative = (keep == 0) & (numbers < 0)
        # Of the entries that are gone, the number that this one is.
        number = channel[None, :] - before
        bits = negative.to(tl.uint32) << (number & 31).to(tl.uint32)
        sign_bytes = (SPLITTING.dim - tl.sum(keep, 1) + 7) // 8
        for word in tl.static_range(tl.constexpr(SPLITTING.sign_words)):
            flags = tl.sum(tl.where(number // 32 == word, bits, 0), 1)
            _store_word(signs + sign_starts, flags, inside, sign_bytes[:, None], word)


@triton.jit
def _store_word(at, bits, inside, size, WORD: tl.constexpr):
    """Word `WORD` of rows of `size` bytes that begin at addresses [N], bits [N] of it; no byte beyond the row."""
    byte = tl.arange(0, 4)
    shifted = bits[:, None] >> (8 * byte).to(tl.uint32)[None, :]
    mask = inside[:, None] & (4 * WORD + byte[None, :] < size)
    tl.store(at[:, None] + 4 * WORD + byte[None, :], shifted.to(tl.uint8), mask=mask)


def split(
    chosen: Chosen,
    unfit: Tensor,
    rule: KeepRule | SegmentRule,
    statistic: Statistic,
    signed: bool,
    inverse_norms: Tensor | None = None,
) -> PrunedRows:
    """Chosen rows of D numbers split by a rule, as `winnow.kernels.pruning.split_rows` splits gathered ones.

    unfit: fp32 [1], which becomes NaN where a number is not finite. inverse_norms: [H, D].
    """
    chosen = chosen.readable()
    rows, head, token = chosen.rows, chosen.head, chosen.token
    slots, dim, device = len(token), rows.shape[-1], rows.device
    how = splitting(rows.dtype, dim, rule, statistic, signed, inverse_norms is not None)
    norms = None if inverse_norms is None else inverse_norms.float().contiguous()
    masks = torch.empty(slots, how.mask_bytes, dtype=torch.uint8, device=device)
    stats = torch.empty(slots, how.stats, dtype=torch.float32, device=device)
    counts = kept = signs = None
    if how.flat:
        counts = torch.empty(slots, dtype=torch.int64, device=device)
    else:
        kept = torch.empty(slots, how.most, dtype=rows.dtype, device=device)
        signs = torch.empty(slots, -(-(dim - how.most) // 8), dtype=torch.uint8, device=device) if signed else None
    if slots:
        grid, constants = _launched(slots, how)
        choose_channels[grid](
            *(rows, *rows.stride()[:2], head, token, norms, _segments(rule)),
            *(masks, stats, counts, kept, signs, unfit, slots),
            **constants,
        )
    if counts is not None:
        kept, signs = _taken(chosen, how, masks, counts)
    assert kept is not None
    return PrunedRows(kept, counts, masks, stats, signs)


def _taken(chosen: Chosen, how: Splitting, masks: Tensor, counts: Tensor) -> tuple[Tensor, Tensor | None]:
    """Flat rows of counts [S] kept numbers, and of the others' signs; the host waits for what they take."""
    rows, head, token = chosen.rows, chosen.head, chosen.token
    sizes = torch.stack([counts, -(-(how.dim - counts) // 8)], 1)
    ends = sizes.cumsum(0)
    numbers, sign_bytes = ends[-1].tolist() if len(ends) else (0, 0)
    kept = torch.empty(numbers, dtype=rows.dtype, device=rows.device)
    signs = torch.empty(sign_bytes, dtype=torch.uint8, device=rows.device) if how.signed else None
    if len(counts):
        grid, constants = _launched(len(counts), how)
        take_channels[grid](
            *(rows, *rows.stride()[:2], head, token, masks, ends - sizes, kept, signs, len(counts)),
            **constants,
        )
    return kept, signs


def _launched(slots: int, how: Splitting) -> tuple[tuple[int], dict[str, object]]:
    """The grid of a kernel for so many slots, and its constants."""
    wide = tile_width(how.dim)
    together = max(1, NUMBERS // wide)
    constants = {"SPLITTING": how, "WIDE": wide, "SLOTS": together, "num_warps": WARPS, "enable_fp_fusion": False}
    return (triton.cdiv(slots, together),), constants


def _segments(rule: KeepRule | SegmentRule) -> Tensor | None:
    """int8 [H, D]: the segment of every channel; None where a rule has none."""
    if isinstance(rule, KeepRule):
        return None
    columns = rule.columns
    numbers = [number for number, (width, _) in enumerate(rule.segments) for _ in range(width)]
    which = sent(torch.tensor(numbers, dtype=torch.int8, device="cpu"), columns.device)
    return torch.zeros_like(columns, dtype=torch.int8).scatter_(1, columns, which.expand(columns.shape))
