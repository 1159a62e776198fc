"""Statistics of what a cache really holds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class CacheStats:
    """Statistics of a cache, counted from its tensors, not from what a method promises."""

    slots: list[list[int]]
    """Compressed slots per compressed layer and KV head. A prefix that several rows share counts once."""
    tail_tokens: list[int]
    """Dense tokens after the prompt, or after the last fold, per row."""
    bytes: dict[str, int]
    """Bytes of allocated tensors, by kind: keys, values, indices (positions, offsets, lengths, and what plans of decode
    attention hold), scales, masks, statistics and signs of packed slots, tail_keys and tail_values (dense tokens, also
    those of a prompt that is not compressed yet, and the room behind them), and other (sliding and linear layers, the
    queries of a prompt that is still arriving, the recent queries of a cache that folds). Memory outside of tensors is
    not counted, such as the arguments of the compiled kernels: a few hundred bytes per row and block."""
    held_bytes: int
    """Sum of `bytes`; also the sum of `prefix_bytes`, `tail_bytes`, `reserve_bytes` and `other_bytes`."""
    used_bytes: int
    """Bytes in use: `held_bytes` minus the tail's room for growth."""
    full_bytes: int
    """Bytes of transformers' own cache for the same rows, tokens and layers."""
    tokens_seen: int
    """Tokens of every row so far, padding included."""
    rows: int
    """Number of sequences in the batch."""
    compress_seconds: float
    """Seconds spent on scoring, selecting and packing."""

    @property
    def ratio(self) -> float:
        """held_bytes / full_bytes; 1 for an empty cache."""
        return self.held_bytes / self.full_bytes if self.full_bytes else 1.0

    @property
    def prefix_bytes(self) -> int:
        """Bytes of the compressed prefixes: slots with their scales, masks and statistics, and all indices."""
        return self.held_bytes - self._tail_allocated - self.other_bytes

    @property
    def tail_bytes(self) -> int:
        """Bytes of dense tokens: those after the prompt, and those of a prompt that is not compressed yet."""
        return self._tail_allocated - self.reserve_bytes

    @property
    def reserve_bytes(self) -> int:
        """Bytes of the tail's room for growth."""
        return self.held_bytes - self.used_bytes

    @property
    def other_bytes(self) -> int:
        """Bytes that no method compresses: sliding and linear layers, and queries that are needed again."""
        return self.bytes.get("other", 0)

    @property
    def _tail_allocated(self) -> int:
        return self.bytes.get("tail_keys", 0) + self.bytes.get("tail_values", 0)


def storage_bytes(tensors: Iterable[Tensor | None]) -> int:
    """Bytes of the memory behind tensors, each storage once (a view keeps the whole of it alive)."""
    storages = {}
    for tensor in tensors:
        if tensor is not None:
            storage = tensor.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())
