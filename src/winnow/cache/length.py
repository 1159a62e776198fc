"""The mark by which the mask function recognizes a compressed cache."""

from __future__ import annotations

from typing import Any, Protocol


class Holder(Protocol):
    """The side of a layer that the mask function sees; `CompressedLayer` documents each method."""

    def check_rows(self, rows: int) -> None: ...
    def held_tokens(self) -> list[int]: ...


class LogicalLength(int):
    """A number of tokens that comes from a compressed cache.

    transformers hands `kv_length` to the mask function as the cache returned it, so the type is the message.
    """

    compressed: bool
    holder: Holder

    def __new__(cls, tokens: int, compressed: bool, holder: Holder) -> LogicalLength:
        length = super().__new__(cls, tokens)
        length.compressed, length.holder = compressed, holder
        return length

    def __getnewargs__(self) -> Any:
        return int(self), self.compressed, self.holder
