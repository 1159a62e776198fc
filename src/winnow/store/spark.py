"""SPARK: query-aware unstructured sparsity of the KV cache with recoverable channels.

Every slot keeps the key channels that its own product with the window's queries lives on. For the others a statistic
of the slot stays, from which attention takes their size, and their signs.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from winnow.errors import MethodError
from winnow.kernels.formats import PackedBlock
from winnow.kernels.formats.draws import STATISTICS
from winnow.kernels.formats.draws import Recovery as Drawn
from winnow.kernels.formats.entries import Entries
from winnow.kernels.formats.packed import PackedRows
from winnow.kernels.formats.pruned import Pruned
from winnow.kernels.pruning import KeepRule, SegmentRule, Split, Statistic
from winnow.parameters import check_choice, check_count, check_number, meaning
from winnow.select import Selection
from winnow.store.channels import ChannelChoice, Channels, Width, check_finite, whole_part, window_queries
from winnow.view import LayerView

Recovery = Literal[
    "degenerate", "gaussian", "exponential", "gaussian-printed", "exponential-printed", "constant", "none"
]
Sign = Literal["stored", "query", "none"]
Norm = Literal["rms", "mean", "group-mean"]
Measure = Literal["linear", "squared"]
Recent = Literal["dense", "pruned"]
Rule = Literal["published", "segments", "lowest"]

_WRITTEN: dict[Recovery, Drawn] = {
    "degenerate": "degenerate",
    "gaussian": "truncated gaussian",
    "exponential": "truncated exponential",
    "gaussian-printed": "gaussian",
    "exponential-printed": "exponential",
    "constant": "constant",
    "none": "constant",
}
"""Names that blocks and kernels have for recoveries."""
_STATISTIC: dict[Drawn, Statistic] = {
    "degenerate": "pruned sizes",
    "truncated gaussian": "pruned moments",
    "truncated exponential": "pruned moments",
    "gaussian": "moments",
    "exponential": "mean",
    "constant": "mean",
}
"""Statistic that pruned sizes are made from (Eq. 11 to 13; App. A.2's "within the pruned set" where truncated)."""
_COLUMNS: dict[Drawn, tuple[int, ...]] = {"truncated exponential": (0, 2), "constant": ()}
"""Numbers of the statistic that a slot keeps, where not all."""
_MOST_FILL = 65504.0
"""The largest number of float16: no key of a model is larger."""
_LEAST_NORM = 1e-6
"""Least norm, as a share of the largest of its head: a channel that no query uses must not recover to infinity."""


@dataclass(frozen=True, kw_only=True)
class Saliency(Channels):
    """Common ground of the forms of SPARK: saliency, recovery, signs.

    w_{t,j} = n_j·|k_{t,j}| (Eq. 7), n_j from the window's queries; a pruned entry comes back as σ_{t,j}·w̃_t / n_j
    (Eq. 8), w̃ = mean of the pruned saliencies (degenerate), or drawn from N(μ, σ²) or Exp(1 / μ) of them, cut off at
    the largest of them. Squared saliency, n_j·k_{t,j}², comes back as σ_{t,j}·sqrt(w̃_t / n_j), and its root is drawn.
    """

    recovery: Recovery = field(
        default="degenerate",
        metadata=meaning(
            "size of pruned entries: degenerate (their mean); gaussian or exponential (drawn from the distribution of "
            "the pruned, up to the largest of them); these with -printed (from that of all, without a limit); "
            "constant; none (0)"
        ),
    )
    fill: float = field(default=0.01, metadata=meaning("size of pruned entries if recovery is constant"))
    sign: Sign = field(
        default="stored", metadata=meaning("sign of pruned entries: stored (1 bit), that of the mean query, or none")
    )
    norm: Norm = field(
        default="rms",
        metadata=meaning(
            "n_j, size of the queries of window and group: rms (root mean square), mean (|mean query|, the paper) or "
            "group-mean (rms over the window of the group's mean, its code)"
        ),
    )
    saliency: Measure = field(
        default="linear", metadata=meaning("linear: n_j times |k| (the paper); squared: n_j times k² (its code)")
    )
    recent: Recent = field(default="dense", metadata=meaning("slots of the scorer's window: dense, or pruned"))
    queries: int = field(default=32, metadata=meaning("number of last queries that decide which channels matter"))
    seed: int = field(default=0, metadata=meaning("seed of random recoveries"))

    per_slot = True

    def __post_init__(self) -> None:
        check_choice(self, "recovery", tuple(_WRITTEN))
        check_number(self, "fill", 0, _MOST_FILL)
        check_choice(self, "sign", ("stored", "query", "none"))
        check_choice(self, "norm", ("rms", "mean", "group-mean"))
        check_choice(self, "saliency", ("linear", "squared"))
        check_choice(self, "recent", ("dense", "pruned"))
        check_count(self, "queries", 1)
        check_count(self, "seed", 0)

    @property
    def window_dense(self) -> bool:
        return self.recent == "dense"

    @property
    def compares_slots(self) -> bool:
        return False

    def queries_needed(self, length: int) -> int:
        return min(self.queries, length)

    @abstractmethod
    def rule(self, dim: int) -> KeepRule:
        """Rule by which channels of a key stay, by saliency."""

    def layer_rule(self, view: LayerView, inverse_norms: Tensor) -> KeepRule | SegmentRule:
        """Rule of one layer, whose channels have inverse norms [H, D]."""
        return self.rule(view.keys.shape[-1])

    def value_rule(self, dim: int) -> KeepRule | None:
        """Rule by which channels of a value stay, by magnitude; None for all."""
        return None

    def choose(self, view: LayerView, selection: Selection, like: PackedBlock | None) -> ChannelChoice:
        before = like.keys.pruned if like is not None else None
        # What is written goes on as it was written, whatever this store would do now.
        if before is not None and before.recovery != "constant" and before.inverse_norms is not None:
            measured, recovered = before.inverse_norms, _Recovered.of(before)
        else:
            signs, measured = self._channel_norms(view)
            recovered = _Recovered.of(before) if before is not None else self._recovered(signs, measured)
        return _SparkChoice(
            how=self,
            rule=self.layer_rule(view, measured),
            value_rule=self.value_rule(view.values.shape[-1]),
            inverse_norms=measured,
            recovered=recovered,
        )

    def widths(self, key_dim: int, value_dim: int, itemsize: int) -> tuple[Width, Width]:
        kept = self.rule(key_dim).most
        signs = -(-(key_dim - kept) // 8) if self.stores_signs else 0
        stats = itemsize * STATISTICS[_WRITTEN[self.recovery]]
        # Rows of different length begin on whole bytes, and every 32nd beginning is known.
        ends = 2 if self.varies else 0
        return Width(kept, -(-key_dim // 8) + stats + signs + ends), Width(value_dim)

    def head_bytes(self, key_dim: int) -> int:
        return 0 if self.recovery == "none" else key_dim * torch.float32.itemsize

    @property
    def stores_signs(self) -> bool:
        """True if every pruned entry keeps its sign."""
        return self.sign == "stored" and self.recovery != "none"

    def _recovered(self, signs: Tensor, measured: Tensor) -> _Recovered:
        """The way back of pruned entries, from signs and measured inverse norms [H, D]."""
        written = _WRITTEN[self.recovery]
        if self.recovery == "none":
            return _Recovered(written, None, 0.0, self.seed)
        if self.recovery == "constant":
            return _Recovered(written, signs, float(self.fill), self.seed)
        return _Recovered(written, measured, 0.0, self.seed)

    def _channel_norms(self, view: LayerView) -> tuple[Tensor, Tensor]:
        """fp32 [H, D]: signs that pruned entries take where none are stored, and 1 / n_j with that sign.

        Of squared saliency 1 / sqrt(n_j): the size of an entry is the root of its saliency.
        """
        queries = window_queries(view, self.queries)
        check_finite(queries, view.layer, "queries")
        mean = queries.mean(1, dtype=torch.float64).float()
        signs = torch.where(mean < 0, -1.0, 1.0) if self.sign == "query" else torch.ones_like(mean)
        norms = self._norms(queries, view.queries.shape[0] // view.keys.shape[0])
        largest = norms.amax(1, keepdim=True)
        norms = torch.where(largest > 0, norms.maximum(_LEAST_NORM * largest), 1.0)
        # A GPU's square roots in fp32 are not those of the CPU to the last bit; in double precision the bit is lost.
        sizes = norms.double().sqrt().float() if self.saliency == "squared" else norms
        return signs, signs / sizes

    def _norms(self, queries: Tensor, group: int) -> Tensor:
        """fp32 [H, D]: n_j of queries [H, G·n, D]."""
        # In double precision: devices add up in different orders, and must choose the same channels.
        queries = queries.double()
        if self.norm == "mean":
            return queries.mean(1).abs().float()
        if self.norm == "group-mean":
            queries = queries.unflatten(1, (group, -1)).mean(1)
        return queries.square().mean(1).sqrt().float()


@dataclass(frozen=True)
class Spark(Saliency):
    """Keeps the T = D - ⌊λD⌋ most salient key channels of every slot; optionally, also the largest value channels."""

    ratio: float = field(default=0.5, metadata=meaning("λ of keys: the share of channels that every slot drops"))
    values: float = field(default=0.0, metadata=meaning("λ of values, by magnitude; 0 keeps all channels"))

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("ratio", "values"):
            check_number(self, name, 0, 1)
        if not 0 < self.ratio < 1 or self.values == 1:
            raise MethodError(
                f"spark: ratio must lie between 0 and 1 and values below 1, not {self.ratio} and {self.values}; "
                "spark(0.8) drops 80 % of every key."
            )

    def rule(self, dim: int) -> KeepRule:
        return KeepRule(dim - whole_part(self.ratio, dim))

    def value_rule(self, dim: int) -> KeepRule | None:
        gone = whole_part(self.values, dim)
        return KeepRule(dim - gone) if gone else None

    def widths(self, key_dim: int, value_dim: int, itemsize: int) -> tuple[Width, Width]:
        keys, _ = super().widths(key_dim, value_dim, itemsize)
        gone = whole_part(self.values, value_dim)
        return keys, Width(value_dim - gone, -(-value_dim // 8) + itemsize if gone else 0)


@dataclass(frozen=True)
class SparkP(Saliency):
    """SPARK-p: keeps the fewest channels of every slot whose saliencies reach a share of their sum."""

    share: float = field(
        default=0.95,
        metadata=meaning("share of a key's saliency that its kept channels reach; the code: 0.99 of the squared one"),
    )

    @property
    def varies(self) -> bool:
        return True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self, "share", 0, 1)

    def rule(self, dim: int) -> KeepRule:
        return KeepRule(dim, self.share, squared=self.saliency == "squared")


@dataclass(frozen=True)
class SparkG(Saliency):
    """SPARK-g: keeps one of a few ratios of channels, by what a slot needs, or by what channels are worth.

    The paper gives ratios to segments of channels (§5.5), its code gives them to slots:

    published: the number of channels that slots need to reach a share of their saliency is one range, divided into g
        parts. Slots in the i-th part keep the i-th ratio of their channels. The code has g = 5, and 0.99 of squared
        saliency.
    segments: the channels of a head are divided into g segments by their mean saliency. Every slot prunes its own least
        salient channels of each segment, a larger ratio of them in a lower segment.
    lowest: every slot keeps the lowest ratio that reaches the share, or the highest ratio if none does. This is
        Winnow's own.
    """

    groups: int = field(default=4, metadata=meaning("number of ratios: 4 (0.25, 0.5, 0.75, 1) or 5 (0.1 to 0.9)"))
    share: float = field(
        default=0.8, metadata=meaning("share of a key's saliency that kept channels should reach; not with segments")
    )
    by: Rule = field(
        default="lowest",
        metadata=meaning(
            "lowest: slots keep the lowest ratio that reaches the share; published: slots that need more channels keep "
            "more (the code, with share 0.99 of squared saliency); segments: every slot prunes more of the less "
            "salient channels (the paper)"
        ),
    )

    @property
    def varies(self) -> bool:
        return self.by != "segments"

    @property
    def compares_slots(self) -> bool:
        return self.by == "segments"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self, "groups", (4, 5))
        check_number(self, "share", 0, 1)
        check_choice(self, "by", ("published", "segments", "lowest"))

    @property
    def ratios(self) -> tuple[float, ...]:
        """Shares of channels, ascending."""
        return (0.25, 0.5, 0.75, 1.0) if self.groups == 4 else (0.1, 0.3, 0.5, 0.7, 0.9)

    def levels(self, dim: int) -> tuple[int, ...]:
        """Channels that a slot may keep, ascending; of segments there is one number."""
        if self.by == "segments":
            return (sum(kept for _, kept in self.segments(dim)),)
        whole = whole_part if self.by == "published" else _nearest
        return tuple(max(1, whole(ratio, dim)) for ratio in self.ratios)

    def segments(self, dim: int) -> tuple[tuple[int, int], ...]:
        """Channels of every segment and how many of them a slot keeps, from the most salient segment on."""
        ends = [dim * (i + 1) // self.groups for i in range(self.groups)]
        sizes = [end - start for start, end in zip([0, *ends], ends, strict=False)]
        kept = [size - whole_part(ratio, size) for size, ratio in zip(sizes, self.ratios, strict=True)]
        # A slot keeps one channel at least.
        return tuple(zip(sizes, kept if any(kept) else [*kept[:-1], 1], strict=True))

    def rule(self, dim: int) -> KeepRule:
        levels = self.levels(dim)
        if self.by == "segments":
            return KeepRule(levels[0])
        # The code looks at the place of the channel that reaches the share, from 0 on.
        parts = tuple(whole_part((i + 1) / self.groups, dim) + 1 for i in range(self.groups))
        return KeepRule(
            levels[-1],
            self.share,
            levels,
            bounds=parts if self.by == "published" else (),
            squared=self.saliency == "squared",
        )

    def layer_rule(self, view: LayerView, inverse_norms: Tensor) -> KeepRule | SegmentRule:
        if self.by != "segments":
            return super().layer_rule(view, inverse_norms)
        worth = view.keys.detach().abs().sum(1, dtype=torch.float32) / inverse_norms.abs()
        return SegmentRule(worth.argsort(dim=1, descending=True, stable=True), self.segments(worth.shape[1]))


class _Recovered(NamedTuple):
    """The numbers that stand for pruned entries in all slots of a layer, in the words of `Pruned`."""

    recovery: Drawn
    inverse_norms: Tensor | None
    """fp32 [H, D]"""
    fill: float
    seed: int

    @classmethod
    def of(cls, written: Pruned) -> _Recovered:
        """As it was written."""
        return cls(written.recovery, written.inverse_norms, written.fill, written.seed)


@dataclass(frozen=True, kw_only=True)
class _SparkChoice(ChannelChoice):
    """Saliency of a layer whose channel norms are known."""

    how: Saliency
    rule: KeepRule | SegmentRule
    value_rule: KeepRule | None
    inverse_norms: Tensor
    """fp32 [H, D], of saliencies"""
    recovered: _Recovered

    def own_keys(self, split: Split) -> PackedRows:
        recovery, norms, fill, seed = self.recovered
        statistic = _STATISTIC[recovery]
        if statistic == "pruned sizes" and self.how.saliency == "squared":
            statistic = "pruned rms"
        found = split(self.rule, statistic, self.how.stores_signs, self.inverse_norms)
        stats = found.stats[:, _COLUMNS[recovery]] if recovery in _COLUMNS else found.stats
        # A copy: every block holds, and counts, its own.
        own = None if norms is None else norms.clone()
        stats = _within(stats, found.rows.dtype)
        pruned = Pruned(found.masks, stats, found.signs, own, recovery, seed, fill=fill)
        return PackedRows(Entries(found.rows, 16), pruned, found.counts)

    def own_values(self, split: Split) -> PackedRows | None:
        if self.value_rule is None:
            return None
        found = split(self.value_rule, "pruned numbers", signed=False)
        pruned = Pruned(found.masks, found.stats.to(found.rows.dtype))
        return PackedRows(Entries(found.rows, 16), pruned)


def _nearest(ratio: float, dim: int) -> int:
    return round(ratio * dim)


def _within(numbers: Tensor, dtype: torch.dtype) -> Tensor:
    """In the model's dtype; products of large queries and keys may lie beyond fp16."""
    return numbers.clamp(max=min(torch.finfo(each).max for each in (dtype, numbers.dtype))).to(dtype)
