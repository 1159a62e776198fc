"""The longest prompt that a length has room for."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from winnow.tasks.benchmark import BenchmarkError, Request
from winnow.tasks.example import Example

Write = Callable[[int], Example]
"""An example with a haystack of so many lines, words, sentences or documents."""


class Pieces(NamedTuple):
    """Numbers of pieces that a haystack may have."""

    fewest: int
    each: float
    """Tokens of one more, roughly; a good guess saves counting."""
    most: int | None = None


class TooLongError(BenchmarkError):
    """A prompt that is too long with the smallest haystack that there is."""


def longest_example(write: Write, pieces: Pieces, request: Request, length: int, max_new_tokens: int) -> Example:
    """The example with the largest haystack that leaves room for an answer of `max_new_tokens` tokens.

    Raises TooLongError where even the smallest leaves none.
    """

    def size(count: int) -> int:
        example = write(count)
        return request.count_tokens(example.context + example.question + example.answer_prefix) + max_new_tokens

    count = largest_fitting(size, length, pieces)
    if count is None:
        raise TooLongError(
            f"A prompt with its answer takes at least {size(pieces.fewest):,} tokens, not {length:,}: "
            "ask for longer prompts."
        )
    return write(count)


def largest_fitting(size: Callable[[int], int], limit: int, pieces: Pieces) -> int | None:
    """A count whose size is within the limit while the next one's is not, or the most; None if the fewest is too large.

    Sizes that grow about evenly are found after a handful of measurements, others after a bisection. At most as many
    pieces are added as the limit has tokens, because some tokenizers have none for some text.
    """
    low, low_size = pieces.fewest, size(pieces.fewest)
    if low_size > limit:
        return None
    most = pieces.fewest + limit if pieces.most is None else min(pieces.most, pieces.fewest + limit)
    high: int | None = None
    slope, halve = pieces.each, False
    while (room := most - low if high is None else high - low - 1) > 0:
        width = None if high is None else high - low
        step = min(room, (room + 1) // 2 if halve else max(1, int((limit - low_size) / slope)))
        measured = size(low + step)
        slope = max((measured - low_size) / step, pieces.each / 8)
        if measured <= limit:
            low, low_size = low + step, measured
        else:
            high = low + step
        # Between two measurements, a guess that leaves more than half is followed by the middle.
        halve = width is not None and high is not None and high - low > width / 2
    return low
