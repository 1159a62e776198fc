"""Splitting rows into kept and pruned channels: the native kernels against the torch form, to the bit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from support.dense_attention import DTYPES
from support.instruction_sets import available, needs_native
from winnow.kernels import native, pruning, pruning_native, pruning_reference
from winnow.kernels.formats.bits import unpack_flags
from winnow.kernels.pruning import KeepRule, PrunedRows, SaliencyScale, Statistic

STATISTICS: tuple[Statistic, ...] = get_args(Statistic)
ISAS = available()
HEADS = 3


@pytest.fixture(autouse=True)
def same_isa_afterwards() -> Iterator[None]:
    used = native.isa() if ISAS else ""
    yield
    if ISAS:
        native.select_isa(used)


def numbers(kind: str, slots: int, dim: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    """[S, D] of one kind, finite; half of them negative, some of them -0."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(slots, dim, generator=generator)
    made = {
        "normal": drawn,
        "ties": (2 * drawn).round(),
        "zeros": drawn * 0,
        "wide": drawn * torch.exp2(10 * torch.randn(slots, dim, generator=generator).clamp(-2, 1.4)),
        "tiny": drawn * 2 * torch.finfo(dtype).smallest_normal,
    }
    most = torch.finfo(dtype).max
    rows = made[kind].clamp(-most, most).to(dtype)
    rows[1::5] = 0
    return rows


def scale_of(slots: int, dim: int, equal: bool, seed: int = 0) -> SaliencyScale:
    """Norms of either sign, all equal where sizes should tie; rows of head after head."""
    generator = torch.Generator().manual_seed(seed)
    norms = torch.rand(HEADS, dim, generator=generator) + 0.1 if not equal else torch.full((HEADS, dim), 0.5)
    signs = torch.randint(2, norms.shape, generator=generator) * 2 - 1
    return SaliencyScale(norms * signs, torch.randint(HEADS, (slots,), generator=generator).sort().values)


def assert_equal(found: PrunedRows, expected: PrunedRows) -> None:
    """To the bit."""
    assert torch.equal(found.masks, expected.masks)
    assert found.rows.dtype == expected.rows.dtype
    assert torch.equal(found.rows, expected.rows)
    for one, other in ((found.counts, expected.counts), (found.signs, expected.signs)):
        assert (one is None) == (other is None)
        assert one is None or other is None or torch.equal(one, other)
    assert torch.equal(found.stats, expected.stats)


def check(rows: Tensor, rule: KeepRule, statistic: Statistic, signed: bool, scale: SaliencyScale | None) -> None:
    """Every instruction set gives what the torch form gives."""
    expected = pruning_reference.prune_rows(rows, rule, statistic, signed, scale)
    for isa in ISAS:
        native.select_isa(isa)
        assert_equal(pruning_native.prune_rows(rows, rule, statistic, signed, scale), expected)


@st.composite
def rules(draw: st.DrawFn, dim: int) -> KeepRule:
    most = draw(st.integers(1, dim))
    kind = draw(st.sampled_from(["most", "share", "levels"]))
    if kind == "most":
        return KeepRule(most)
    share, squared = draw(st.sampled_from([0.0, 0.3, 0.5, 0.9, 0.99, 1.0])), draw(st.booleans())
    if kind == "share":
        return KeepRule(dim, share, squared=squared)
    levels = [*sorted(draw(st.lists(st.integers(1, most), max_size=3))), most]
    bounds = sorted(draw(st.lists(st.integers(1, dim), min_size=len(levels), max_size=len(levels))))
    return KeepRule(most, share, tuple(levels), tuple(bounds) if draw(st.booleans()) else (), squared)


@st.composite
def problems(draw: st.DrawFn) -> tuple[Tensor, KeepRule, Statistic, bool, SaliencyScale | None]:
    dim, slots = draw(st.integers(1, 300)), draw(st.sampled_from([0, 1, 2, 7, 70]))
    kind, dtype, seed = (
        draw(st.sampled_from(["normal", "ties", "zeros", "wide", "tiny"])),
        draw(st.sampled_from(DTYPES)),
        draw(st.integers(0, 99)),
    )
    scale = scale_of(slots, dim, kind == "ties", seed) if draw(st.booleans()) else None
    return (
        numbers(kind, slots, dim, dtype, seed),
        draw(rules(dim)),
        draw(st.sampled_from(STATISTICS)),
        draw(st.booleans()),
        scale,
    )


@needs_native
@settings(max_examples=300, deadline=None, derandomize=True)
@given(problem=problems())
def test_any_rows_are_split_as_the_torch_form_splits_them(problem: Any) -> None:
    check(*problem)


@needs_native
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [1, 7, 8, 9, 63, 64, 65, 127, 128, 129, 256])
def test_any_number_of_channels_may_stay(dim: int, dtype: torch.dtype) -> None:
    rows, scale = numbers("normal", 40, dim, dtype), scale_of(40, dim, equal=False)
    for most in {1, 2, dim // 2, dim - 1, dim} & set(range(1, dim + 1)):
        check(rows, KeepRule(most), "pruned sizes", True, scale)


@needs_native
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rule", [KeepRule(64), KeepRule(128, 0.9), KeepRule(128, 0.8, (32, 64, 96, 128))])
def test_many_rows_in_two_threads(rule: KeepRule, dtype: torch.dtype) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        check(numbers("normal", 3000, 128, dtype), rule, "pruned sizes", True, scale_of(3000, 128, equal=False))
    finally:
        torch.set_num_threads(threads)


@needs_native
@pytest.mark.parametrize("rule", [KeepRule(9), KeepRule(20, 0.7)])
def test_rows_may_lie_apart_or_across(rule: KeepRule) -> None:
    scale = scale_of(30, 20, equal=False)
    wide = numbers("normal", 60, 50, torch.float32)
    for rows in (wide[::2, 10:30], wide.T[:20, :30].T, wide[:1, :20].expand(30, 20)):
        check(rows, rule, "pruned sizes", True, scale)
    across = SaliencyScale(scale.inverse_norms.T.contiguous().T, scale.head.repeat_interleave(2)[::2])
    check(wide[:30, :20], rule, "pruned sizes", True, across)


@needs_native
@pytest.mark.parametrize("rule", [KeepRule(5), KeepRule(40, 0.5), KeepRule(20, 0.9, (5, 10, 20))])
def test_sizes_beyond_what_fp32_holds_are_the_largest(rule: KeepRule) -> None:
    rows = numbers("normal", 20, 40, torch.float32)
    rows[:, 3::9] *= 1e38
    scale = SaliencyScale(torch.full((1, 40), 1e-3), torch.zeros(20, dtype=torch.int64))
    expected = pruning_reference.prune_rows(rows, rule, "pruned sizes", True, scale)
    for isa in ISAS:
        native.select_isa(isa)
        assert torch.equal(pruning_native.prune_rows(rows, rule, "pruned sizes", True, scale).masks, expected.masks)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.99])
@pytest.mark.parametrize("kind", ["normal", "ties", "wide"])
def test_kept_channels_reach_the_share_and_without_the_least_do_not(kind: str, share: float) -> None:
    rows = numbers(kind, 200, 96, torch.float32)
    found = pruning.prune_rows(rows, KeepRule(96, share), "pruned sizes", True)
    sizes = rows.abs().double()
    kept = sizes.where(unpack_flags(found.masks, 96), 0)
    least = sizes.where(unpack_flags(found.masks, 96), torch.inf).amin(1)
    target, some = share * sizes.sum(1), sizes.sum(1) > 0
    assert found.counts is not None
    assert (found.counts[~some] == 1).all()
    assert (kept.sum(1) >= target * (1 - 1e-6)).all()
    assert (kept.sum(1) - least < target * (1 + 1e-6))[some].all()


@pytest.mark.parametrize("share", [0.3, 0.9, 0.99])
def test_a_share_of_squares_is_one_of_the_squared_sizes(share: float) -> None:
    rows = numbers("normal", 100, 60, torch.float32)
    found = pruning.prune_rows(rows, KeepRule(60, share, squared=True), "pruned rms", False)
    assert found.counts is not None
    for row, count, stat in zip(rows.double().tolist(), found.counts.tolist(), found.stats[:, 0].tolist(), strict=True):
        squares = sorted((number * number for number in row), reverse=True)
        reached = next((n for n in range(1, 61) if sum(squares[:n]) >= share * sum(squares)), 60)
        assert count == reached
        assert stat == pytest.approx((sum(squares[count:]) / max(60 - count, 1)) ** 0.5, rel=1e-6)


def test_bounds_say_which_level_a_row_gets() -> None:
    """A row that needs 1, 2, 3 or 4 of its channels, with bounds that differ from the levels."""
    rows = torch.zeros(4, 8)
    for row in range(4):
        rows[row, : row + 1] = 1
    rule = KeepRule(7, 1.0, (2, 5, 7), (1, 3, 8))
    assert pruning.prune_rows(rows, rule, "mean", False).counts.tolist() == [2, 5, 5, 7]


@needs_native
def test_moments_of_what_is_pruned() -> None:
    rows = numbers("normal", 50, 40, torch.float32)
    found = pruning.prune_rows(rows, KeepRule(15), "pruned moments", False)
    pruned = rows.abs().double().sort(1).values[:, :25]
    expected = torch.stack([pruned.mean(1), pruned.std(1, unbiased=False), pruned[:, -1]], 1)
    assert torch.allclose(found.stats.double(), expected, rtol=1e-6, atol=1e-7)


def test_equal_sizes_keep_the_lower_channels() -> None:
    rows = torch.tensor([[1.0, -3.0, 2.0, 2.0, -2.0, 0.0, 2.0, -3.0]])
    found = pruning.prune_rows(rows, KeepRule(4), "pruned numbers", True)
    assert found.rows.tolist() == [[-3.0, 2.0, 2.0, -3.0]]
    assert (found.masks.tolist(), found.signs is not None and found.signs.tolist()) == ([[0b10001110]], [[0b0010]])
    assert found.stats.tolist() == [[0.25]]


@needs_native
@pytest.mark.parametrize("rule", [KeepRule(0), KeepRule(9), KeepRule(8, 0.5, (4, 6)), KeepRule(8, 0.5, (4, 8), (3,))])
def test_rules_that_do_not_fit_are_refused(rule: KeepRule) -> None:
    with pytest.raises(ValueError, match="does not fit rows of 8 channels"):
        pruning_native.prune_rows(torch.randn(3, 8), rule, "mean", True)


@needs_native
def test_norms_that_do_not_fit_are_refused() -> None:
    rows, head = torch.randn(3, 8), torch.zeros(3, dtype=torch.int64)
    for scale in (
        SaliencyScale(torch.ones(1, 7), head),
        SaliencyScale(torch.ones(1, 8), head[:2]),
        SaliencyScale(torch.ones(1, 8), head + 1),
    ):
        with pytest.raises(ValueError, match="do not fit 3 x 8 numbers"):
            pruning_native.prune_rows(rows, KeepRule(4), "mean", True, scale)


def test_the_torch_form_serves_where_there_is_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = numbers("normal", 30, 24, torch.bfloat16)
    expected = pruning.prune_rows(rows, KeepRule(10), "pruned sizes", True)
    monkeypatch.setattr(native, "library", lambda: None)
    assert not pruning_native.supports(rows)
    assert torch.equal(pruning.prune_rows(rows, KeepRule(10), "pruned sizes", True).masks, expected.masks)
    with pytest.raises(RuntimeError, match="not available"):
        pruning_native.prune_rows(rows, KeepRule(10), "pruned sizes", True)
