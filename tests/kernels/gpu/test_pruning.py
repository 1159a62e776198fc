"""Slots that Triton splits into kept channels and what stands for the others, against the CPU's kernels, to the bit."""

from __future__ import annotations

from typing import NamedTuple, get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from support.gpu import DEVICE
from support.later_slots import later
from support.packed_slots import WINDOW, layer_of, selected
from support.stores import ALL, HEAD_SCORES, STORES
from winnow.errors import ModelError
from winnow.kernels.formats import Block
from winnow.kernels.formats.entries import (
    Entries,
    grouped_by_channels,
    grouped_by_slots,
    quantize_flat,
    symmetric,
    symmetric_groups,
)
from winnow.kernels.formats.packed import PackedRows
from winnow.kernels.formats.serialize import on_device, take_apart
from winnow.kernels.formats.signed import signed
from winnow.kernels.gpu import support
from winnow.kernels.gpu.choosing import splitting
from winnow.kernels.gpu.gathering import Chosen, Coordinates
from winnow.kernels.gpu.packing import packed, ranged
from winnow.kernels.gpu.pruning import split
from winnow.kernels.gpu.requantizing import quantized
from winnow.kernels.gpu.summing import channel_sums
from winnow.kernels.pruning import KeepRule, PrunedRows, SegmentRule, Statistic, split_rows
from winnow.store import Bits, MixedBits, Packed, SparkP, Think
from winnow.view import LayerView

pytestmark = pytest.mark.usefixtures("one_thread")
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
DIMS = [64, 128, 80, 96, 33, 24, 7]
HEADS, LENGTH = 3, 30


class _Rows(NamedTuple):
    """Keys of a layer, some slots of it, and norms of its heads."""

    rows: Tensor
    head: Tensor
    token: Tensor
    norms: Tensor

    @property
    def there(self) -> Chosen:
        return Chosen(*(each.to(DEVICE) for each in self[:3]))

    @property
    def gathered(self) -> Tensor:
        return self.rows[self.head, self.token]


def drawn(kind: str, dtype: torch.dtype, dim: int, slots: int, seed: int) -> _Rows:
    """Slots of the first and the last head; equal numbers and equal norms where sizes should tie."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(HEADS, LENGTH, dim, generator=generator)
    norms = torch.rand(HEADS, dim, generator=generator) + 0.1
    if kind == "ties":
        rows, norms = (2 * rows).round(), torch.full_like(norms, 0.5)
    if kind == "wide":
        rows *= torch.exp2(4 * torch.randn(rows.shape, generator=generator).clamp(-2, 2))
    rows[:, ::4] = 0
    norms *= torch.randint(2, norms.shape, generator=generator) * 2 - 1
    head = (torch.randint(2, (slots,), generator=generator) * (HEADS - 1)).sort().values
    return _Rows(rows.to(dtype), head, torch.randint(LENGTH, (slots,), generator=generator), norms)


def found_by_triton(
    given: _Rows, rule: KeepRule | SegmentRule, statistic: Statistic, signed: bool, normed: bool
) -> PrunedRows:
    unfit = torch.zeros(1, device=DEVICE)
    if isinstance(rule, SegmentRule):
        rule = rule._replace(columns=rule.columns.to(DEVICE))
    norms = given.norms.to(DEVICE) if normed else None
    result = split(given.there, unfit, rule, statistic, signed, norms)
    assert not unfit.isnan().any()
    return result


def same(found: PrunedRows, expected: PrunedRows) -> None:
    for name in PrunedRows._fields:
        here, there = getattr(expected, name), getattr(found, name)
        assert (here is None) == (there is None), name
        assert here is None or (here.dtype == there.dtype and torch.equal(there.cpu(), here)), name


@st.composite
def rules(draw: st.DrawFn, dim: int) -> KeepRule | SegmentRule:
    kind = draw(st.sampled_from(["most", "share", "levels", "segments"]))
    most = draw(st.integers(1, dim))
    share, squared = draw(st.sampled_from([0.0, 0.5, 0.9, 0.99])), draw(st.booleans())
    if kind == "most":
        return KeepRule(most)
    if kind == "share":
        return KeepRule(dim, share, squared=squared)
    if kind == "levels":
        levels = [*sorted(draw(st.lists(st.integers(1, most), max_size=3))), most]
        bounds = sorted(draw(st.lists(st.integers(1, dim), min_size=len(levels), max_size=len(levels))))
        return KeepRule(most, share, tuple(levels), tuple(bounds) if draw(st.booleans()) else (), squared)
    cut = draw(st.integers(1, dim - 1))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 9)))
    columns = torch.stack([torch.randperm(dim, generator=generator) for _ in range(HEADS)])
    return SegmentRule(columns, ((cut, draw(st.integers(0, cut))), (dim - cut, draw(st.integers(1, dim - cut)))))


@st.composite
def problems(draw: st.DrawFn) -> tuple[_Rows, KeepRule | SegmentRule]:
    dim = draw(st.sampled_from(DIMS))
    kind, dtype = draw(st.sampled_from(["normal", "ties", "wide"])), draw(st.sampled_from(DTYPES))
    slots = draw(st.sampled_from([0, 1, 2, 19]))
    return drawn(kind, dtype, dim, slots, draw(st.integers(0, 99))), draw(rules(dim))


@settings(max_examples=25, deadline=None)
@given(problem=problems(), statistic=st.sampled_from(get_args(Statistic)), signed=st.booleans(), normed=st.booleans())
def test_any_slots_are_split_as_on_the_cpu(
    problem: tuple[_Rows, KeepRule | SegmentRule], statistic: Statistic, signed: bool, normed: bool
) -> None:
    given, rule = problem
    normed = normed or isinstance(rule, SegmentRule)
    norms = given.norms if normed else None
    expected = split_rows(given.gathered, given.head, rule, statistic, signed, norms)
    same(found_by_triton(given, rule, statistic, signed, normed), expected)


@pytest.mark.parametrize("rule", [KeepRule(5), KeepRule(40, 0.5), KeepRule(20, 0.9, (5, 10, 20))])
def test_sizes_beyond_what_fp32_holds_are_the_largest(rule: KeepRule) -> None:
    given = drawn("normal", torch.float32, 40, 20, 0)
    given.rows[:, :, 3::9] *= 1e38
    given = given._replace(norms=given.norms * 1e-3)
    expected = split_rows(given.gathered, given.head, rule, "pruned sizes", True, given.norms)
    same(found_by_triton(given, rule, "pruned sizes", True, True), expected)


def test_rows_of_other_strides_are_split_where_they_lie() -> None:
    given = drawn("normal", torch.float16, 64, 19, 1)
    spread = given._replace(rows=given.rows.transpose(0, 1).contiguous().transpose(0, 1))
    across = given._replace(rows=given.rows.mT.contiguous().mT)
    expected = split_rows(given.gathered, given.head, KeepRule(20), "mean", True, given.norms)
    for each in (spread, across):
        same(found_by_triton(each, KeepRule(20), "mean", True, True), expected)


@pytest.mark.parametrize("rule", [KeepRule(0), KeepRule(9), KeepRule(8, 0.5, (4, 6)), KeepRule(8, 0.5, (4, 8), (3,))])
def test_rules_that_do_not_fit_are_refused(rule: KeepRule) -> None:
    with pytest.raises(ValueError, match="does not fit rows of 8 channels"):
        splitting(torch.float32, 8, rule, "mean", True, True)


@settings(max_examples=10, deadline=None)
@given(
    dtype=st.sampled_from(DTYPES),
    dim=st.sampled_from(DIMS),
    bits=st.sampled_from([8, 6, 4, 3, 2]),
    of_either_sign=st.booleans(),
    slots=st.sampled_from([0, 1, 19]),
    seed=st.integers(0, 99),
)
def test_rows_of_any_length_become_integers_to_the_bit(
    dtype: torch.dtype, dim: int, bits: int, of_either_sign: bool, slots: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    counts = torch.randint(1, dim + 1, (slots,), generator=generator)
    numbers = (3 * torch.randn(int(counts.sum()), generator=generator)).to(dtype)
    numbers[: dim // 2] = 0
    expected = quantize_flat(numbers, counts, bits, dtype, signed if of_either_sign else symmetric)
    rows = PackedRows(Entries(numbers.to(DEVICE), 16), None, counts.to(DEVICE))
    found = quantized(rows, bits, dim, of_either_sign).entries
    assert torch.equal(found.data.cpu(), expected.data)
    assert found.scales is not None
    assert expected.scales is not None
    assert torch.equal(found.scales.cpu(), expected.scales)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [64, 80])
def test_channels_of_heads_are_packed_to_the_bit(dim: int, dtype: torch.dtype) -> None:
    given, kept = drawn("normal", dtype, dim, 32, 3), dim - dim // 3
    columns = torch.stack([torch.randperm(dim)[:kept].sort().values for _ in range(HEADS)]).to(torch.int16)
    there, plain = given.there._replace(columns=columns.to(DEVICE)), Coordinates(None, None, False)
    numbers = given.gathered.gather(1, columns.long()[given.head])
    wide = numbers.float()
    assert torch.equal(packed(there, plain, 16, 0).data.cpu(), numbers)
    for expected, found in (
        (symmetric(wide, 4, dtype), packed(there, plain, 4, 0)),
        (symmetric_groups(wide, 8, dtype, 32), packed(there, plain, 8, 32)),
        (grouped_by_slots(wide, 4, dtype), ranged(there, plain, 4, by_slots=True)),
        (grouped_by_channels(wide, 3, dtype), ranged(there, plain, 3, by_slots=False)),
    ):
        for name in ("data", "scales", "zeros"):
            here, its = getattr(expected, name), getattr(found, name)
            assert here is None or torch.equal(its.cpu(), here)


@pytest.mark.parametrize("counts", [[400, 0, 3], [0, 0, 0]])
def test_channels_are_summed_up_by_head(counts: list[int]) -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(3, 500, 40, generator=generator).to(torch.float16)
    token = torch.cat([torch.randperm(500, generator=generator)[:count] for count in counts])
    offsets = torch.tensor([0, *counts]).cumsum(0)
    found = channel_sums(rows.to(DEVICE), offsets, token.to(DEVICE))
    for head in range(3):
        mine = rows[head, token[offsets[head] : offsets[head + 1]]].double()
        torch.testing.assert_close(found.numbers[head].cpu(), mine.sum(0), rtol=1e-13, atol=1e-13)
        torch.testing.assert_close(found.squares[head].cpu(), mine.square().sum(0), rtol=1e-13, atol=0)


@pytest.fixture
def on_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stores pack as they do on a GPU, by kernels alone."""
    monkeypatch.setattr(support, "packs", lambda *sides: True)
    monkeypatch.delattr(Packed, "_piece")


def there(view: LayerView) -> LayerView:
    return view._replace(**{name: getattr(view, name).to(DEVICE) for name in ("queries", "keys", "values")})


def same_blocks(found: Block, expected: Block) -> None:
    mine, its = take_apart(expected), take_apart(on_device(found, torch.device("cpu")))
    assert its.facts == mine.facts
    assert its.tensors.keys() == mine.tensors.keys()
    assert [name for name, tensor in mine.tensors.items() if not torch.equal(its.tensors[name], tensor)] == []


SIGNED: dict[str, Packed] = {
    "mixed bits, signed": Packed(precision=MixedBits(mean=5, scales="signed", scores=HEAD_SCORES)),
    "spark-p and 3 bits, signed": Packed(SparkP(share=0.9), Bits(high=3, scales="signed")),
    "think and 4 bits, signed": Packed(Think(), Bits(high=4, scales="signed")),
}
EVERY = STORES | ALL | SIGNED


@pytest.mark.parametrize("name", EVERY)
def test_a_store_packs_and_folds_the_same_on_a_gpu(request: pytest.FixtureRequest, name: str) -> None:
    how, dtype = EVERY[name], DTYPES[len(name) % 3]
    view, selection = layer_of(40, 24, 60, heads=4, dtype=dtype), selected([60, 41, 5, 0], 60)
    block = how.pack(view, selection, WINDOW)
    now = later(block, view, 1)
    folded = how.pack(now.view, now.selection, WINDOW, now.earlier)
    request.getfixturevalue("on_triton")
    same_blocks(how.pack(there(view), selection, WINDOW), block)
    earlier = now.earlier._replace(block=on_device(block, DEVICE))
    same_blocks(how.pack(there(now.view), now.selection, WINDOW, earlier), folded)


@pytest.mark.usefixtures("on_triton")
@pytest.mark.parametrize("name", ["spark", "spark, nothing", "spark-p", "think", "think and 8 bits"])
@pytest.mark.parametrize("side", ["keys", "values"])
def test_what_is_not_finite_is_refused(side: str, name: str) -> None:
    view = layer_of(40, 24, 30, dtype=torch.float16)
    getattr(view, side)[1, 2, 3] = torch.inf
    with pytest.raises(ModelError, match=f"{side} of layer 0 contain infinities or NaN"):
        ALL[name].pack(there(view), selected([30, 30], 30), WINDOW)
