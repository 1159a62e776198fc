"""Pieces of a softmax that is taken on the way: logits capped, and a reference that can be subtracted from them."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def capped(logits, softcap, CAPPED: tl.constexpr):
    """softcap·tanh(logits / softcap), where the model does so."""
    if CAPPED:
        # tanh by exp, of what cannot overflow; libdevice is not to be had under the interpreter.
        folded = tl.exp(-2.0 * tl.abs(logits) / softcap)
        size = softcap * (1.0 - folded) / (1.0 + folded)
        logits = tl.where(logits < 0, -size, size)
    return logits


@triton.jit
def finite(maximum):
    """The largest logits so far, 0 where nothing was seen yet: exp(-inf - 0) is 0, exp(-inf + inf) is not a number."""
    return tl.where(maximum == float("-inf"), 0.0, maximum)
