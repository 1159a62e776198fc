"""Choice of bits for the kept numbers of every head: the other half of a packed store."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor

from winnow.errors import MethodError
from winnow.heads import HeadScores
from winnow.heads.resolve import given_scores, highest, scores_of_model
from winnow.kernels.formats.entries import (
    CHANNEL_GROUPS,
    ENTRY_BITS,
    GROUP,
    Entries,
    grouped_by_channels,
    grouped_by_slots,
    symmetric,
    symmetric_groups,
)
from winnow.kernels.formats.signed import signed
from winnow.parameters import SLACK, check_choice, check_count, check_number, meaning

_FLOOR_WEIGHT = 0.01
"""Weight of a head without a score, in units of the largest."""

Rotate = bool | Literal["keys", "values", "auto"]
Step = bool | Literal["auto"]
COORDINATES: Step = "auto"
"""The default of `rotate`, `center` and `smooth`; "auto" takes all three steps wherever all channels stay."""
_ROTATIONS: tuple[Rotate, ...] = (True, False, "keys", "values", "auto")
_ROTATE = (
    "spread outliers over channels by a Walsh–Hadamard transform: true, keys, values, false, or auto (true where no "
    "channels are dropped)"
)
_CENTER = "subtract the mean of a head's keys first: true, false, auto"
Round = Literal["nearest", "queries"]
_ROUND = "rounding of keys: nearest, or queries (errors of a key compensate each other for the last 256 queries)"
Scales = Literal["symmetric", "signed"]
_SCALES = (
    "symmetric (integers as far below zero as above), or signed (the number of largest size gets the lowest integer)"
)
_DENSE_FIRST = "number of first tokens whose slots stay dense: they get much attention, so their errors count more"
_SMOOTH = "divide the channels of a head's keys by the root of their spread, before the rotation: true, false, auto"


class Precision(ABC):
    """Base of ways to write kept numbers: half of a packed store. Subclasses are frozen dataclasses."""

    slots_together: int = 1
    """Slots of a head that can only be written together."""
    rotate: Rotate = False
    """True if integers are those of rows after a Walsh–Hadamard transform; "auto": where no channels are dropped."""
    center: Step = False
    """True if a mean of the head's keys is subtracted from them first; "auto" as above."""
    smooth: Step = False
    """True if channels of keys are divided by the square root of their spread next; "auto" as above."""
    round: Round = "nearest"
    """Way in which numbers of keys become integers; "queries": as in `feedback.py`."""
    scales: Scales = "symmetric"
    """Way in which integers get their scales; "signed": as in `kernels/formats/signed.py`."""
    dense_first: int = 0
    """First tokens of a sequence whose slots stay dense."""
    residual: int = 0
    """Last slots of every head that stay dense."""

    @property
    def by_head(self) -> bool:
        """True if heads have bits of their own, by scores."""
        return False

    @property
    def channels_together(self) -> int:
        """Neighboring channels of a slot that share a scale; 0 for all of them."""
        return 0

    def for_model(self, name: str, heads: tuple[int, ...]) -> Precision:
        """The precision for a particular model; see `Allocator.for_model`."""
        return self

    def with_head_scores(self, scores: HeadScores) -> Precision:
        """The precision with the allocator's head scores; see `Store.with_head_scores`."""
        return self

    @abstractmethod
    def bits(self, layer: int, heads: int) -> Tensor:
        """[H] int64 bits of the keys of every head of a layer, and of its values if `value_bits` says nothing else."""

    def value_bits(self, layer: int, heads: int) -> Tensor:
        """[H] int64 bits of the values of every head of a layer."""
        return self.bits(layer, heads)

    @abstractmethod
    def keys(self, rows: Tensor, bits: int, dtype: torch.dtype) -> Entries:
        """Kept key numbers [n, T] fp32 of one head or several, in `bits` bits."""

    @abstractmethod
    def values(self, rows: Tensor, bits: int, dtype: torch.dtype) -> Entries:
        """Kept value numbers [n, T] fp32."""

    def scale_bytes(self, key_numbers: int, value_numbers: int, itemsize: int) -> tuple[float, float]:
        """Bytes of the scales of a slot's keys and values below 16 bits."""
        return itemsize, itemsize


class PerSlot(Precision):
    """Symmetric, one scale per slot and matrix, or per group of its channels."""

    def keys(self, rows: Tensor, bits: int, dtype: torch.dtype) -> Entries:
        return self._written(rows, bits, dtype)

    def values(self, rows: Tensor, bits: int, dtype: torch.dtype) -> Entries:
        return self._written(rows, bits, dtype)

    def _written(self, rows: Tensor, bits: int, dtype: torch.dtype) -> Entries:
        group = self.channels_together
        if self.scales == "signed":
            return signed(rows, bits, dtype, group)
        return symmetric_groups(rows, bits, dtype, group) if group else symmetric(rows, bits, dtype)

    def scale_bytes(self, key_numbers: int, value_numbers: int, itemsize: int) -> tuple[float, float]:
        group = self.channels_together
        if not group:
            return super().scale_bytes(key_numbers, value_numbers, itemsize)
        return itemsize * -(-key_numbers // group), itemsize * -(-value_numbers // group)


@dataclass(frozen=True)
class AsIs(PerSlot):
    """All heads in the model's dtype."""

    def bits(self, layer: int, heads: int) -> Tensor:
        return torch.full((heads,), 16, device="cpu")


@dataclass(frozen=True)
class ByScores(PerSlot):
    """Common ground of bits by head scores: where the scores come from."""

    scores: HeadScores | None = field(
        default=None,
        kw_only=True,
        metadata=meaning("head scores that decide: a file or a winnow.HeadScores; none: those of the allocator"),
    )
    rotate: Rotate = field(default=COORDINATES, kw_only=True, metadata=meaning(_ROTATE))
    center: Step = field(default=COORDINATES, kw_only=True, metadata=meaning(_CENTER))
    smooth: Step = field(default=COORDINATES, kw_only=True, metadata=meaning(_SMOOTH))
    round: Round = field(default="nearest", kw_only=True, metadata=meaning(_ROUND))
    scales: Scales = field(default="symmetric", kw_only=True, metadata=meaning(_SCALES))
    dense_first: int = field(default=0, kw_only=True, metadata=meaning(_DENSE_FIRST))

    def __post_init__(self) -> None:
        check_choice(self, "rotate", _ROTATIONS)
        check_choice(self, "center", (True, False, "auto"))
        check_choice(self, "smooth", (True, False, "auto"))
        check_choice(self, "round", ("nearest", "queries"))
        check_choice(self, "scales", ("symmetric", "signed"))
        check_count(self, "dense_first", 0)
        object.__setattr__(self, "scores", given_scores(self.scores, "bits"))

    def with_head_scores(self, scores: HeadScores) -> Precision:
        return replace(self, scores=scores) if self._needs_scores and self.scores is None else self

    def for_model(self, name: str, heads: tuple[int, ...]) -> Precision:
        if not self._needs_scores:
            return self
        lacking = (
            f"bits that differ between heads need head scores of {name or 'this model'}: give scores=FILE (`winnow "
            "heads cokv` estimates them), or the same bits for all, as in bits(4)."
        )
        return replace(self, scores=scores_of_model(self.scores, "cokv", name, heads, lacking))

    @property
    def by_head(self) -> bool:
        return self._needs_scores

    @property
    def _needs_scores(self) -> bool:
        return True

    @abstractmethod
    def table(self) -> Tensor:
        """[L, H] int64 bits."""

    def bits(self, layer: int, heads: int) -> Tensor:
        return _table(self)[layer]

    def _importance(self) -> Tensor:
        if self.scores is None:
            raise MethodError("bits that differ between heads are only known for a model: make a cache first.")
        return self.scores.values


_HIGH = 8


@dataclass(frozen=True)
class Bits(ByScores):
    """Stores fewer bits per number: `high` in the half of the heads with the higher scores, `low` in the others.

    CoKV §4.4 and App. C.2. With `high` alone, all heads get these bits, and no scores are needed. `k` and `v` replace
    it for the keys and the values of all heads.
    """

    high: int = field(default=_HIGH, metadata=meaning("bits of all heads, or of the higher half: 16, 8, 6, 4, 3 or 2"))
    low: int = field(default=0, metadata=meaning("bits of the half with the lower scores; 0 for the same as high"))
    k: int = field(default=0, metadata=meaning("bits of keys; 0 for the same as high"))
    v: int = field(default=0, metadata=meaning("bits of values; 0 for the same as high"))
    group: int = field(
        default=0,
        kw_only=True,
        metadata=meaning("neighboring channels of a slot that share a scale: 32 or 64; 0 for all of them"),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self, "high", ENTRY_BITS)
        for name in ("low", "k", "v"):
            check_choice(self, name, (0, *ENTRY_BITS))
        check_choice(self, "group", (0, *CHANNEL_GROUPS))
        self._check_sides()
        if self.low >= self.high:
            raise MethodError(
                f"bits: low must be below high, not {self.low} and {self.high}; bits(8, 4) is the paper's."
            )
        if self._of_keys == self._of_values == 16 and not self.low:
            raise MethodError("bits(16) would store everything as it is; leave it out, or give fewer bits.")

    def _check_sides(self) -> None:
        if self.low and (self.k or self.v):
            raise MethodError(
                "bits: low is for half of the heads, k and v are for all of them; give bits(8, 4) or bits(k=8, v=4)."
            )
        if self.k and self.v and self.high != _HIGH:
            raise MethodError(f"bits: k and v set all bits, so high={self.high} has no effect; leave high out.")

    @property
    def _of_keys(self) -> int:
        return self.k or self.high

    @property
    def _of_values(self) -> int:
        return self.v or self.high

    @property
    def channels_together(self) -> int:
        return self.group

    @property
    def _needs_scores(self) -> bool:
        return self.low > 0

    def bits(self, layer: int, heads: int) -> Tensor:
        return super().bits(layer, heads) if self.low else torch.full((heads,), self._of_keys, device="cpu")

    def value_bits(self, layer: int, heads: int) -> Tensor:
        return super().bits(layer, heads) if self.low else torch.full((heads,), self._of_values, device="cpu")

    def table(self) -> Tensor:
        scores = self._importance()
        best = highest(scores, scores.numel() // 2)
        return torch.where(best, self.high, self.low)


@dataclass(frozen=True)
class MixedBits(ByScores):
    """Stores 16, 8, 6, 4, 3 or 2 bits per number in every head, by head scores, up to a given mean.

    An error of b bits is about 4^-b of the range. So heads start at 2 bits and get more in the order of weight·Δ(4^-b)
    per bit, as long as the mean allows. A head's weight is its score (0 if negative) plus 1 % of the largest: a head
    that costs nothing when it is dropped may still mislead with 2 bits.
    """

    mean: float = field(default=6.0, metadata=meaning("the most bits per number, as a mean over all heads"))

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self, "mean", ENTRY_BITS[-1], ENTRY_BITS[0])

    def table(self) -> Tensor:
        scores = self._importance()
        weights = scores.double().flatten().clamp(min=0)
        weights = weights / weights.max().clamp(min=torch.finfo(weights.dtype).tiny) + _FLOOR_WEIGHT
        left = int((self.mean - ENTRY_BITS[-1]) * len(weights) + SLACK)
        return _climb(weights, left).view(scores.shape)


@dataclass(frozen=True)
class Kivi(Precision):
    """KIVI: A Tuning-Free Asymmetric 2bit Quantization for KV Cache (Liu et al. 2024, arXiv 2402.02750).

    Keys are scaled per channel over groups of 32 slots, values per slot over groups of 32 channels, both with a zero
    point. Slots that do not fill a group, the scorer's window, and the last `residual` slots of every head stay dense.
    """

    width: int = field(default=4, metadata=meaning("bits per number: 8, 6, 4, 3 or 2"))
    rotate: Rotate = field(default=False, kw_only=True, metadata=meaning(_ROTATE))
    residual: int = field(
        default=0,
        kw_only=True,
        metadata=meaning("least number of last slots of every head that stay dense; 128 in the paper"),
    )

    slots_together = GROUP

    def __post_init__(self) -> None:
        check_choice(self, "width", ENTRY_BITS[1:])
        check_choice(self, "rotate", _ROTATIONS)
        check_count(self, "residual", 0)

    def bits(self, layer: int, heads: int) -> Tensor:
        return torch.full((heads,), self.width, device="cpu")

    def keys(self, rows: Tensor, bits: int, dtype: torch.dtype) -> Entries:
        return grouped_by_slots(rows, bits, dtype)

    def values(self, rows: Tensor, bits: int, dtype: torch.dtype) -> Entries:
        return grouped_by_channels(rows, bits, dtype)

    def scale_bytes(self, key_numbers: int, value_numbers: int, itemsize: int) -> tuple[float, float]:
        return 2 * itemsize * key_numbers / GROUP, 2 * itemsize * -(-value_numbers // GROUP)


def _climb(weights: Tensor, left: int) -> Tensor:
    """Widths [n] from 2 bits on, spending at most `left` further bits where they gain most; ties to the lower head."""
    steps = list(pairwise(sorted(ENTRY_BITS)))
    gains = torch.stack([weights * (4.0**-low - 4.0**-high) / (high - low) for low, high in steps])
    widths = torch.full_like(weights, 2, dtype=torch.int64)
    # Between any two widths a bit gains the less the wider they are, so the order of gains never skips a step.
    for place in gains.flatten().argsort(descending=True, stable=True).tolist():
        low, high = steps[place // len(weights)]
        head = place % len(weights)
        if widths[head] == low and high - low <= left:
            widths[head] = high
            left -= high - low
    return widths


@lru_cache(maxsize=64)
def _table(precision: ByScores) -> Tensor:
    """Every layer of a prompt asks for the same, hence the cache."""
    return precision.table()
