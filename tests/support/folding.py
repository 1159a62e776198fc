"""Sequences under decoding compression, and the oracle's word on them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

import winnow
from support.families import VOCABULARY
from support.fold_oracle import Expected, Rule

PROMPT = 30
RULES = {
    "snapkv": Rule("snapkv", 14, 5, window=4),
    "snapkv, shorter than its window": Rule("snapkv", 14, 3, window=8),
    "snapkv, nothing but the window": Rule("snapkv", 6, 4, window=6),
    "snapkv, every token": Rule("snapkv", 12, 1, window=4),
    "adakv": Rule("snapkv", 14, 5, window=4, compete=True),
    "adakv, every token": Rule("snapkv", 10, 1, window=4, compete=True),
    "streamingllm": Rule("streamingllm", 12, 5),
    "tova": Rule("tova", 12, 5),
    "tova, every token": Rule("tova", 9, 1),
    "knorm": Rule("knorm", 12, 5),
    "knorm, uneven heads": Rule("knorm", 12, 5, compete=True),
    "h2o": Rule("h2o", 12, 5),
    "h2o, every token": Rule("h2o", 12, 1),
    "h2o, normalized": Rule("h2o(normalize=True)", 12, 5, compete=True),
    "rkv": Rule("rkv(window=4)", 14, 5, window=4),
    "rkv, uneven heads": Rule("rkv(window=4)", 14, 5, window=4, compete=True),
    "kvec": Rule("kvec(window=3, wide_window=5, wide_heads=1)", 12, 5, window=3),
    "kvec, uneven heads": Rule("kvec(window=3, wide_window=5, wide_heads=1)", 12, 5, window=3, compete=True),
    "expectedattention": Rule("expectedattention(value_norm=False)", 12, 5),
    "expectedattention, uneven heads": Rule("expectedattention(value_norm=False)", 12, 3, compete=True),
    "triattention": Rule("triattention", 12, 5),
    "triattention, uneven heads": Rule("triattention", 12, 3, compete=True),
    "keydiff": Rule("keydiff", 12, 5),
    "keydiff, uneven heads": Rule("keydiff", 12, 7, compete=True),
}


def distinct(length: int, seed: int = 0) -> Tensor:
    """[1, N] tokens of which none occurs twice: keys of equal tokens have equal norms, but for rounding."""
    return torch.randperm(VOCABULARY - 1, generator=torch.Generator().manual_seed(seed))[None, :length] + 1


def folding(model, rule: Rule, **kwargs) -> winnow.CompressedCache:
    method = winnow.method(rule.name, rule.budget)
    return winnow.CompressedCache(model, method, fold_every=rule.every, fold_turns=rule.turns, **kwargs)


def run(model, cache, ids: Tensor, chunks: Sequence[int]) -> Tensor:
    """Logits [R, N, V] of ids [R, N], fed in chunks."""
    parts, start = [], 0
    with torch.no_grad():
        for size in chunks:
            parts.append(model(ids[:, start : start + size], past_key_values=cache, use_cache=True).logits)
            start += size
    return torch.cat(parts, dim=1)


def check(model, rule: Rule, ids: Tensor, chunks: Sequence[int]) -> winnow.CompressedCache:
    """One sequence ids [1, N] against the oracle: logits of every token, positions of every head."""
    cache = folding(model, rule)
    logits = run(model, cache, ids, chunks)
    same(cache, 0, logits[0], Expected(model, rule, ids[0], chunks))
    return cache


def same(cache, row: int, logits: Tensor, expected: Expected) -> None:
    torch.testing.assert_close(logits.double(), expected.logits, atol=1e-4, rtol=1e-4)
    for layer, kept in expected.kept.items():
        assert [head.tolist() for head in cache.kept(layer, row)] == kept
    assert cache.stats().tail_tokens[row] == len(expected.tail[0])
