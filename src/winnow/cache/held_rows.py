"""Rows that a layer of the cache holds: a compressed prefix and a dense tail of each, whoever asks for them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers.cache_utils import CacheLayerMixin

from winnow.cache.arriving import Arriving
from winnow.cache.captured_step import CapturedStep
from winnow.cache.padded_turns import PaddedTurn, last_tokens, selected, until
from winnow.cache.prefix import Prefix
from winnow.cache.recent_queries import RecentQueries
from winnow.cache.tail import Tail
from winnow.cache.token_step import TokenStep
from winnow.errors import CacheError
from winnow.kernels.interface import AttentionPlan


class HeldRows(CacheLayerMixin):
    """Prefixes and tails of the rows of one layer: joined, chosen, taken apart and counted."""

    def _forget(self) -> None:
        self.seen = 0
        self.compressed = False
        self.recording = False
        self.prefixes: list[Prefix | None] = []
        self.tail: Tail | None = None
        self.arriving = Arriving()
        self.padded: tuple[PaddedTurn, ...] = ()
        self.recent: RecentQueries | None = None  # only where the tail is folded
        self._plan: AttentionPlan | None = None
        self._step: TokenStep | CapturedStep | None = None  # only from a token on that was the first of its kind

    def is_fresh(self) -> bool:
        """True if the prompt is compressed and nothing came after it."""
        return self.compressed and self.tail is not None and self.tail.longest == 0

    def is_joinable(self) -> bool:
        """True if rows hold prefixes and tails that all count: no candidates, no padding among later tokens."""
        return self.compressed and not self.recording and not self.padded

    def join(self, others: Sequence[HeldRows]) -> None:
        """Adds the rows of other layers behind this one's."""
        self.tail = self._held_tail().joined([other._held_tail() for other in others])
        if self.recent is not None:
            self.recent = self.recent.joined([other.recent for other in others if other.recent is not None])
        self.prefixes = [*self.prefixes, *(prefix for other in others for prefix in other.prefixes)]
        self.seen = max(self.seen, *(other.seen for other in others)) if others else self.seen
        self._plan = self._step = None

    def leave_alone(self, row: int) -> None:
        """Only one row is left, as if there had never been others."""
        self._select_rows(torch.tensor([row], device="cpu"))
        (prefix,), tail = self.prefixes, self._held_tail()
        self.seen = (prefix.length if prefix else 0) + tail.longest

    def view_coalitions(self, masks: Tensor, window: int) -> None:
        """Row i of the C rows, which share one prefix, reads it as masks [C, H] say; see `Prefix.coalitions`."""
        (prefix,) = self.distinct_prefixes()
        self.prefixes = list(prefix.coalitions(masks, window))
        self._plan = self._step = None

    def kept(self, row: int) -> list[Tensor]:
        """Kept positions per KV head of one row, ascending int64; none for a row of nothing but padding."""
        prefix = self.prefixes[row]
        if prefix is None:
            return [torch.empty(0, dtype=torch.int64, device="cpu") for _ in range(self._held_tail().keys.shape[1])]
        return prefix.kept()

    def distinct_prefixes(self) -> list[Prefix]:
        """The prefixes of all rows, shared ones once."""
        return list({id(prefix): prefix for prefix in self.prefixes if prefix is not None}.values())

    def held_prefixes(self) -> list[Prefix]:
        """One of every set of prefixes that view the same keys and values."""
        return list({prefix.block.identity: prefix for prefix in self.distinct_prefixes()}.values())

    def slots(self) -> list[int]:
        """Compressed slots per KV head that are held; prefixes and views that rows share count once."""
        per_prefix = [prefix.slots() for prefix in self.held_prefixes()]
        return [sum(head) for head in zip(*per_prefix, strict=True)]

    def bytes(self) -> dict[str, int]:
        """Bytes allocated, by kind."""
        parts = [prefix.bytes() for prefix in self.held_prefixes()]
        parts.append({"indices": sum(prefix.view_bytes() for prefix in self.distinct_prefixes())})
        parts.append({"statistics": sum(each.moments.nbytes for each in self.held_prefixes() if each.moments)})
        if self.tail is not None:
            parts.append(self.tail.bytes())
        parts.append({"other": self.arriving.nbytes() + (self.recent.nbytes() if self.recent else 0)})
        if self._plan is not None:
            parts.append({"indices": self._plan.nbytes()})
        kinds: dict[str, int] = {}
        for part in parts:
            for kind, size in part.items():
                kinds[kind] = kinds.get(kind, 0) + size
        return kinds

    def tensors(self) -> list[Tensor]:
        """All that is held of prefixes and of tokens after them."""
        held = [tensor for prefix in self.distinct_prefixes() for tensor in prefix.tensors()]
        if self.tail is not None:
            held += [self.tail.keys, self.tail.values, self.tail.lengths_there]
        return held if self.recent is None else [*held, self.recent.ring]

    def spare_bytes(self) -> int:
        """Room for growth in the tail."""
        if self.tail is None:
            return 0
        return self.tail.keys.nbytes + self.tail.values.nbytes - self.tail.used_bytes()

    def full_bytes(self) -> int:
        """Bytes of a dense cache for the rows and tokens seen."""
        if self.tail is None:
            return 0
        rows, heads, _, dim = self.tail.keys.shape
        slot = (dim + self.tail.values.shape[-1]) * self.tail.keys.element_size()
        return rows * heads * self.seen * slot

    def _held_tail(self) -> Tail:
        if self.tail is None:
            raise CacheError("this layer is empty; run the prompt through the model first.")
        return self.tail

    def _select_rows(self, rows: Tensor) -> None:
        if not self.is_initialized:
            return
        rows = rows.to(torch.int64)
        self.prefixes = [self.prefixes[row] for row in rows.tolist()]
        self._held_tail().select(rows)
        self.padded = selected(self.padded, rows)
        self.arriving.select(rows)
        if self.recent is not None:
            self.recent.select(rows)
        self._plan = self._step = None

    def _go_back(self, seen: int) -> None:
        """So many columns are there, no later ones."""
        self.seen = seen
        if self.padded:
            self.padded = until(self.padded, seen)

    def _held_of_last(self, columns: int) -> Tensor | int:
        """Tokens that rows hold of the last columns: [R], or one number where none of these are padding."""
        if not self.padded:
            return columns
        return last_tokens(self.padded, self.seen, columns, len(self.prefixes))
