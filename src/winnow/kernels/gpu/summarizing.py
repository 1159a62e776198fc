"""Statistics of what is gone, to the bit as `pruning_reference.py` defines them.

Sums in double precision have one order: sixteen channels at a time, and those sixteen by halves; squares of deviations
are summed up one by one. A tile is reduced in whatever order its threads hold it, so these are read again, in small
pieces that are still near the processor.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def sizes_at(rows, place, norms, head, channel, inside, SPLITTING: tl.constexpr):
    """fp32 [N, C], [N, C]: numbers and sizes of channels [C] of rows that begin at `place` [N]."""
    mask = inside[:, None] & (channel < SPLITTING.dim)[None, :]
    numbers = tl.load(rows + place[:, None] + channel[None, :], mask=mask, other=0.0).to(tl.float32)
    sizes = tl.abs(numbers)
    if SPLITTING.sized:
        own = norms + head[:, None] * SPLITTING.dim + channel[None, :]
        sizes = tl.div_rn(sizes, tl.abs(tl.load(own, mask=mask, other=1.0)))
    return numbers, sizes


@triton.jit
def word_of(flags, WORD: tl.constexpr, WIDE: tl.constexpr):
    """uint32 [N]: 32 neighboring flags of [N, WIDE] as bits."""
    channel = tl.arange(0, WIDE)
    bits = flags.to(tl.uint32) << (channel % 32).to(tl.uint32)[None, :]
    return tl.sum(tl.where((channel // 32 == WORD)[None, :], bits, 0), 1)


@triton.jit
def store_summary(
    stats, rows, place, norms, head, slot, inside, sizes, flags,
    SPLITTING: tl.constexpr, WIDE: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """stats fp32 [S, SPLITTING.stats] of slots [N], whose sizes [N, WIDE] count where flags are 1."""
    several = tl.maximum(tl.sum(flags, 1), 1).to(tl.float64)
    mean = _summed(rows, place, norms, head, inside, flags, SPLITTING, WIDE, N) / several
    if SPLITTING.statistic == "pruned rms":
        mean = tl.sqrt(mean)
    near = mean.to(tl.float32)
    at = stats + slot * SPLITTING.stats
    tl.store(at, near, mask=inside)
    if SPLITTING.stats > 1:
        squares = _squared(rows, place, norms, head, inside, flags, near, SPLITTING, WIDE, N)
        rest = (mean - near.to(tl.float64)).to(tl.float32).to(tl.float64)
        variance = squares / several - rest * rest
        deviation = tl.sqrt(tl.where(variance > 0, variance, 0.0))
        tl.store(at + 1, deviation.to(tl.float32), mask=inside)
    if SPLITTING.stats > 2:
        tl.store(at + 2, tl.max(tl.where(flags != 0, sizes, 0.0), 1), mask=inside)


@triton.jit
def _summed(
    rows, place, norms, head, inside, flags, SPLITTING: tl.constexpr, WIDE: tl.constexpr, N: tl.constexpr
):  # fmt: skip
    """fp64 [N]: sums of sizes, of their squares or of numbers, where flags [N, WIDE] are 1."""
    sums = tl.zeros([N, 16], tl.float64)
    for word in tl.static_range(tl.constexpr(SPLITTING.words)):
        marks = word_of(flags, word, WIDE)
        for half in tl.static_range(2):
            place_in_word = 16 * half + tl.arange(0, 16)
            numbers, sizes = sizes_at(rows, place, norms, head, 32 * word + place_in_word, inside, SPLITTING)
            worth = sizes.to(tl.float64)
            if SPLITTING.statistic == "pruned numbers":
                worth = numbers.to(tl.float64)
            if SPLITTING.statistic == "pruned rms":
                worth = worth * worth
            marked = (marks[:, None] >> place_in_word.to(tl.uint32)[None, :]) & 1
            sums += tl.where(marked != 0, worth, 0.0)
    for step in tl.static_range(4):
        first, second = tl.split(tl.permute(tl.reshape(sums, [N, 2, 8 >> step]), [0, 2, 1]))
        sums = first + second
    return tl.reshape(sums, [N])


@triton.jit
def _squared(
    rows, place, norms, head, inside, flags, near, SPLITTING: tl.constexpr, WIDE: tl.constexpr, N: tl.constexpr
):  # fmt: skip
    """fp64 [N]: sums of squares of what sizes differ from `near` [N] by, where flags [N, WIDE] are 1."""
    squares = tl.zeros([N], tl.float64)
    for word in tl.static_range(tl.constexpr(SPLITTING.words)):
        marks = word_of(flags, word, WIDE)
        for bit in range(32):
            _, sizes = sizes_at(rows, place, norms, head, 32 * word + bit + tl.arange(0, 1), inside, SPLITTING)
            deviation = (tl.reshape(sizes, [N]) - near).to(tl.float64)
            squares += tl.where((marks >> bit) & 1 != 0, deviation * deviation, 0.0)
    return squares
