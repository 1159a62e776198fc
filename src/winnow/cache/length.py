"""The mark by which the mask function recognizes a compressed cache."""

from __future__ import annotations

from typing import Any


class LogicalLength(int):
    """A number of tokens that comes from a compressed cache.

    transformers hands `kv_length` to the mask function as the cache returned it, so the type is the message.
    """

    compressed: bool

    def __new__(cls, tokens: int, compressed: bool) -> LogicalLength:
        length = super().__new__(cls, tokens)
        length.compressed = compressed
        return length

    def __getnewargs__(self) -> Any:
        return int(self), self.compressed
