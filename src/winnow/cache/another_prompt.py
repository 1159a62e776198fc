"""Signs that what comes is not the continuation of the text that a cache holds.

A cache sees neither tokens nor text. But generate() cuts its input by the cache's length, so a shorter prompt leaves
no token, and one of similar length leaves tokens whose positions come before the end of what is held. Single tokens are
not looked at, as every step of decoding brings one.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from winnow.errors import CacheError

REMEDY = (
    "A cache belongs to one text, which later input continues. Make a new CompressedCache for every prompt "
    "(winnow.generate does), or fork a context with context.cache()."
)
_LAST = torch.iinfo(torch.int32).max
"""A position after all others, in place of padding's."""


def nothing_new(seen: int) -> CacheError:
    """The error for a pass without tokens, over a cache that has seen some."""
    return CacheError(
        f"no token of the input is new: the cache has seen {seen} tokens, and generate() skips as many at the "
        "beginning of its input. If the input has only the new tokens, also pass generate() the attention_mask of the "
        f"whole conversation. {REMEDY}"
    )


def check_shown(shown: Tensor, held: Sequence[int]) -> None:
    """Raises CacheError where a mask hides tokens that are held.

    shown: [R or 1], how many of the columns so far each row of the mask counts as tokens. held: tokens of every row,
    without padding.
    """
    for row, (there, seen) in enumerate(zip(shown.expand(len(held)).tolist(), held, strict=True)):
        if there < seen:
            raise CacheError(
                f"the attention mask hides {seen - there} of the {seen} tokens that row {row} of the cache holds: a "
                "cache leaves out tokens that are hidden when they arrive, but cannot hide them later. Pads that "
                "generate() puts after a row that ended early arrive as tokens. Continue such a row by itself, without "
                f"its pads: own = cache.alone({row}), then own.crop(-{seen - there}). Or give every row its own cache, "
                "as you must if the pads were folded."
            )


def check_positions(positions: Tensor | None, valid: Tensor | None, held: Sequence[int]) -> None:
    """Raises CacheError for new tokens that say that they come before the end of what is held.

    positions: [R or 1, Q], or None or another shape where a model does not tell. valid: [R, Q] if some are padding.
    held: tokens of every row, without padding.
    """
    if positions is None or positions.dim() != 2:
        return
    told = positions if valid is None else positions.masked_fill(~valid.to(positions.device), _LAST)
    first = told.min(dim=1).values.expand(len(held)).tolist()
    for begin, seen in zip(first, held, strict=True):
        if begin < seen:
            raise CacheError(
                f"new tokens begin at position {begin}, but the cache has seen {seen} tokens: they belong to another "
                f"prompt, and would be answered from this cache's text. {REMEDY} Assisted decoding and use_cache=False "
                "cannot continue a cache, because they give the model its whole input again; leave them out."
            )
