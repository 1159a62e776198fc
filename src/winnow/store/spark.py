"""SPARK: query-aware unstructured sparsity of the KV cache with recoverable channels.

Every slot keeps the key channels that its own product with the window's queries lives on. For the others a statistic
of the slot stays, from which attention takes their size, and their signs.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from winnow.errors import MethodError
from winnow.kernels.formats import PackedBlock
from winnow.kernels.formats.draws import Recovery
from winnow.kernels.formats.entries import Entries
from winnow.kernels.formats.packed import PackedRows
from winnow.kernels.formats.pruned import Pruned
from winnow.kernels.pruning import KeepRule, SaliencyScale, Statistic, prune_rows
from winnow.parameters import check_choice, check_count, check_number, meaning
from winnow.select import Selection
from winnow.store.channels import ChannelChoice, Channels, Slots, Width, check_finite, dropped, window_queries
from winnow.view import LayerView

Sign = Literal["stored", "query", "none"]
Norm = Literal["rms", "mean"]
Recent = Literal["dense", "pruned"]

_STATISTIC: dict[Recovery, Statistic] = {
    "degenerate": "pruned sizes",
    "gaussian": "moments",
    "exponential": "mean",
}
"""Statistic that a recovery makes pruned saliencies from (Eq. 11 to 13)."""
_LEAST_NORM = 1e-6
"""Least norm, as a share of the largest of its head: a channel that no query uses must not recover to infinity."""


@dataclass(frozen=True, kw_only=True)
class Saliency(Channels):
    """Common ground of the forms of SPARK: saliency, recovery, signs.

    w_{t,j} = n_j·|k_{t,j}| (Eq. 7), n_j from the window's queries; a pruned entry comes back as σ_{t,j}·w̃_t / n_j
    (Eq. 8), w̃ = mean of the pruned saliencies (degenerate), or drawn from N(μ, σ²) or Exp(1 / μ) of all of them.
    """

    recovery: Recovery = field(
        default="degenerate", metadata=meaning("size of pruned entries: degenerate (their mean), gaussian, exponential")
    )
    sign: Sign = field(
        default="stored", metadata=meaning("sign of pruned entries: stored (1 bit), that of the mean query, or none")
    )
    norm: Norm = field(
        default="rms", metadata=meaning("n_j over window and group: root mean square, or |mean query| as in the paper")
    )
    recent: Recent = field(default="dense", metadata=meaning("slots of the scorer's window: dense, or pruned as well"))
    queries: int = field(default=32, metadata=meaning("last queries that say which channels matter"))
    seed: int = field(default=0, metadata=meaning("of random recoveries"))

    per_slot = True

    def __post_init__(self) -> None:
        check_choice(self, "recovery", ("degenerate", "gaussian", "exponential"))
        check_choice(self, "sign", ("stored", "query", "none"))
        check_choice(self, "norm", ("rms", "mean"))
        check_choice(self, "recent", ("dense", "pruned"))
        check_count(self, "queries", 1)
        check_count(self, "seed", 0)

    @property
    def window_dense(self) -> bool:
        return self.recent == "dense"

    def queries_needed(self, length: int) -> int:
        return min(self.queries, length)

    @abstractmethod
    def rule(self, dim: int) -> KeepRule:
        """Rule by which channels of a key stay, by saliency."""

    def value_rule(self, dim: int) -> KeepRule | None:
        """Rule by which channels of a value stay, by magnitude; None for all."""
        return None

    def choose(self, view: LayerView, selection: Selection, like: PackedBlock | None) -> ChannelChoice:
        before = like.keys.pruned if like is not None else None
        if before is not None and before.inverse_norms is not None:
            return _PerSlot(self, before.inverse_norms)
        return _PerSlot(self, self._inverse_norms(view))

    def widths(self, key_dim: int, value_dim: int, itemsize: int) -> tuple[Width, Width]:
        kept = self.rule(key_dim).most
        signs = -(-(key_dim - kept) // 8) if self.sign == "stored" else 0
        stats = itemsize * (2 if self.recovery == "gaussian" else 1)
        # Rows of different length begin on whole bytes, and every 32nd beginning is known.
        ends = 2 if self.varies else 0
        return Width(kept, -(-key_dim // 8) + stats + signs + ends), Width(value_dim)

    def head_bytes(self, key_dim: int) -> int:
        return key_dim * torch.float32.itemsize

    def _inverse_norms(self, view: LayerView) -> Tensor:
        """fp32 [H, D]: 1 / n_j, negative where the mean query is and that is the sign of pruned entries."""
        queries = window_queries(view, self.queries)
        check_finite(queries, view.layer, "queries")
        mean = queries.mean(1)
        norms = queries.square().mean(1).sqrt() if self.norm == "rms" else mean.abs()
        largest = norms.amax(1, keepdim=True)
        norms = torch.where(largest > 0, norms.maximum(_LEAST_NORM * largest), 1.0)
        return 1 / torch.where(mean < 0, -norms, norms) if self.sign == "query" else 1 / norms


@dataclass(frozen=True)
class Spark(Saliency):
    """Every slot keeps the T = D - ⌊λD⌋ key channels of the largest saliency; optionally, of its values the largest."""

    ratio: float = field(default=0.5, metadata=meaning("λ of keys: the share of channels that every slot drops"))
    values: float = field(default=0.0, metadata=meaning("λ of values, by magnitude; 0 leaves them whole"))

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
        return KeepRule(dim - dropped(self.ratio, dim))

    def value_rule(self, dim: int) -> KeepRule | None:
        gone = dropped(self.values, dim)
        return KeepRule(dim - gone) if gone else None

    def widths(self, key_dim: int, value_dim: int, itemsize: int) -> tuple[Width, Width]:
        keys, _ = super().widths(key_dim, value_dim, itemsize)
        gone = dropped(self.values, value_dim)
        return keys, Width(value_dim - gone, -(-value_dim // 8) + itemsize if gone else 0)


@dataclass(frozen=True)
class SparkP(Saliency):
    """SPARK-p: every slot keeps the fewest channels whose saliencies reach a share of their sum."""

    share: float = field(default=0.99, metadata=meaning("share of a key's saliency that its kept channels reach"))

    varies = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self, "share", 0, 1)

    def rule(self, dim: int) -> KeepRule:
        return KeepRule(dim, self.share)


@dataclass(frozen=True)
class SparkG(Saliency):
    """SPARK-g: every slot gets the lowest of a few ratios at which its kept channels reach a share of the saliency.

    Where none does, it gets the highest. The paper gives the ratios, not how slots get theirs.
    """

    groups: int = field(default=4, metadata=meaning("4: keep 0.25, 0.5, 0.75 or 1 of the channels; 5: 0.1, 0.3 … 0.9"))
    share: float = field(default=0.8, metadata=meaning("share of a key's saliency that kept channels should reach"))

    varies = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self, "groups", (4, 5))
        check_number(self, "share", 0, 1)

    def levels(self, dim: int) -> tuple[int, ...]:
        """Channels that a slot may keep, ascending."""
        shares = (0.25, 0.5, 0.75, 1.0) if self.groups == 4 else (0.1, 0.3, 0.5, 0.7, 0.9)
        return tuple(max(1, round(share * dim)) for share in shares)

    def rule(self, dim: int) -> KeepRule:
        levels = self.levels(dim)
        return KeepRule(levels[-1], self.share, levels)


@dataclass(frozen=True)
class _PerSlot(ChannelChoice):
    """Saliency of a layer whose channel norms are known."""

    how: Saliency
    inverse_norms: Tensor
    """fp32 [H, D]"""

    def keys(self, slots: Slots) -> PackedRows:
        rule, signed = self.how.rule(slots.keys.shape[1]), self.how.sign == "stored"
        scale = SaliencyScale(self.inverse_norms, slots.head)
        found = prune_rows(slots.keys, rule, _STATISTIC[self.how.recovery], signed, scale)
        # A copy: every block holds, and counts, its own.
        norms = self.inverse_norms.clone()
        stats = _within(found.stats, slots.keys.dtype)
        pruned = Pruned(found.masks, stats, found.signs, norms, self.how.recovery, self.how.seed)
        return PackedRows(Entries(found.rows, 16), pruned, found.counts)

    def values(self, slots: Slots) -> PackedRows:
        rule = self.how.value_rule(slots.values.shape[1])
        if rule is None:
            return super().values(slots)
        found = prune_rows(slots.values, rule, "pruned numbers", signed=False)
        pruned = Pruned(found.masks, found.stats.to(slots.values.dtype))
        return PackedRows(Entries(found.rows, 16), pruned)


def _within(numbers: Tensor, dtype: torch.dtype) -> Tensor:
    """In the model's dtype; products of large queries and keys may lie beyond fp16."""
    return numbers.clamp(max=torch.finfo(dtype).max).to(dtype)
