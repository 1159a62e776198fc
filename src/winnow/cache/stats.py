"""Statistics of what a cache really holds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class CacheStats:
    """Counted from the tensors alive, not from what a method promised."""

    slots: list[list[int]]
    """Compressed slots per compressed layer and KV head; prefixes that rows share count once."""
    tail_tokens: list[int]
    """Dense tokens after the prompt, or after the last fold, per row."""
    bytes: dict[str, int]
    """Bytes of tensors allocated, by kind: keys, values, indices (positions, offsets, lengths, and what plans of decode
    attention hold), scales, masks, statistics and signs of packed slots, tail_keys, tail_values, and other (sliding and
    linear layers, a prompt that is still arriving, the recent queries of a cache that folds). Not counted is what is no
    tensor, like the arguments of the compiled kernels: a few hundred bytes per row and block."""
    held_bytes: int
    """Sum of `bytes`."""
    used_bytes: int
    """Bytes that hold something: `held_bytes` less the room for growth in the tail."""
    full_bytes: int
    """Bytes of transformers' own cache for the same rows, tokens and layers."""
    tokens_seen: int
    """Tokens of every row so far, padding included."""
    rows: int
    compress_seconds: float
    """Time spent on scoring, selecting and packing."""

    @property
    def ratio(self) -> float:
        """held_bytes / full_bytes; 1 for an empty cache."""
        return self.held_bytes / self.full_bytes if self.full_bytes else 1.0


def storage_bytes(tensors: Iterable[Tensor | None]) -> int:
    """Bytes of the memory behind tensors, each storage once (a view keeps the whole of it alive)."""
    storages = {}
    for tensor in tensors:
        if tensor is not None:
            storage = tensor.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())
