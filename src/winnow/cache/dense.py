"""Exact attention over dense keys and values, for prompts and for everything that is not compressed."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from winnow.cache.gradients import wants_gradients
from winnow.cache.padding import on_host, places_of
from winnow.cache.window_mask import window_entries
from winnow.kernels import prefill
from winnow.kernels.interface import AttentionSpec
from winnow.kernels.without_autocast import without_autocast
from winnow.models.dtypes import cpu_has_bfloat16

QUERY_BLOCK = 128
"""Queries attended to at a time where the logits are materialized: never more than this many rows of N."""
DEVICE_BLOCK = 1024
"""Queries with a window that a device attends to at a time at least: it takes longer to be asked than for these."""


def dense_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    spec: AttentionSpec,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    window: int | None = None,
) -> Tensor:
    """Attention of query [R, Hq, Q, D] over key [R, H, N, D] and value [R, H, N, Dv], as the stock model does it.

    `mask` is boolean or additive [R | 1, Hq | 1, Q, N]; None means causal, the last query seeing everything
    (`is_causal=False`: everything seen by all). With a `window`, and then no mask, a query sees its own token and the
    window − 1 before it, in time and memory that grow with Q · window. Soft-capping and attention sinks, which
    transformers' own sdpa function lacks, are computed by the compiled kernels where these serve, else blockwise over
    the queries. The compiled kernels take chunks and windows, too, for which sdpa would be given a mask and would
    multiply what that hides, and prompts where they are faster. Returns [R, Q, Hq, Dv].
    """
    if window is not None:
        seen = slice(max(0, key.shape[2] - query.shape[2] - window + 1), None)
        key, value = key[:, :, seen], value[:, :, seen]
        window, is_causal = (window if window < key.shape[2] else None), True
    causal = mask is None and query.shape[2] > 1 and _is_causal(module, is_causal)
    explicit = spec.softcap is not None or spec.sinks is not None
    chunk = causal and query.shape[2] != key.shape[2]
    alike = query.dtype == value.dtype  # not under autocast
    served = causal and alike and prefill.supports(query, key) and not wants_gradients(query, key, value)
    masked = chunk or window is not None
    if served and (explicit or (not dropout and _faster_compiled(query, key, masked, window))):
        return _compiled_attention(query, key, value, spec, window)
    if window is not None:
        return _attention_by_bands(module, query, key, value, spec, dropout, window)
    if explicit:
        with without_autocast(query.device):
            return _explicit_attention(query, key, value, mask, spec, causal)
    if chunk:
        mask = window_entries(query.shape[2], key.shape[2], query.device)
    output, _ = sdpa_attention_forward(
        module, query, key, value, mask, dropout=dropout, scaling=spec.scaling, is_causal=is_causal
    )
    return output


def padded_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, valid: Tensor, spec: AttentionSpec
) -> Tensor:
    """The same for rows with padding, which neither sees nor is seen: `valid` is [R, N], output zero where not.

    Each row is attended to without its padding, so no mask of N² entries is made.
    """
    rows, heads, queries, _ = query.shape
    output, there = query.new_zeros(rows, queries, heads, value.shape[-1]), on_host(valid)
    for row in range(rows):
        if bool(there[row, -queries:].any()):
            tokens, asking = places_of(there[row], key.device), places_of(there[row, -queries:], key.device)
            one = slice(row, row + 1)
            output[row, asking] = dense_attention(
                module, query[one, :, asking], key[one, :, tokens], value[one, :, tokens], None, spec
            )[0]
    return output


def _is_causal(module: nn.Module, is_causal: bool | None) -> bool:
    """As transformers has it: what a call asks for counts before what its module is."""
    return bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)


def _faster_compiled(query: Tensor, key: Tensor, masked: bool, window: int | None) -> bool:
    """True where the compiled kernels take less time than sdpa over supported queries and keys without dropout.

    masked: sdpa would take a mask.
    """
    if prefill.lays_rows(query[0], key[0], window) or prefill.outruns_sdpa():
        return True
    # Otherwise they multiply bfloat16 as fp32, where sdpa has instructions for it.
    return masked and not (key.dtype == torch.bfloat16 and cpu_has_bfloat16())


def _compiled_attention(query: Tensor, key: Tensor, value: Tensor, spec: AttentionSpec, window: int | None) -> Tensor:
    rows = [prefill.attended(prefill.Prompt(*row), spec, window) for row in zip(query, key, value, strict=True)]
    return torch.stack(rows) if len(rows) > 1 else rows[0][None]


def _attention_by_bands(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    spec: AttentionSpec,
    dropout: float,
    window: int,
) -> Tensor:
    """Attention with a window, some queries at a time with the keys that any of them sees."""
    queries, earlier = query.shape[2], key.shape[2] - query.shape[2]
    together = max(QUERY_BLOCK, window // 4) if query.device.type == "cpu" else max(DEVICE_BLOCK, window)
    bands = []
    for start in range(0, queries, together):
        asking = slice(start, min(start + together, queries))
        seen = slice(max(0, earlier + start - window + 1), earlier + asking.stop)
        mask = window_entries(asking.stop - start, seen.stop - seen.start, query.device, window)
        band = query[:, :, asking], key[:, :, seen], value[:, :, seen]
        bands.append(dense_attention(module, *band, mask, spec, dropout))
    return torch.cat(bands, dim=1)


def _explicit_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, spec: AttentionSpec, causal: bool
) -> Tensor:
    heads, queries = query.shape[1:3]
    group = heads // key.shape[1]
    keys, values = key.float().unsqueeze(2), value.float().unsqueeze(2)
    blocks = []
    for start in range(0, queries, QUERY_BLOCK):
        stop = min(start + QUERY_BLOCK, queries)
        block = query[:, :, start:stop].float().unflatten(1, (-1, group))
        logits = (block @ keys.mT * spec.scaling).flatten(1, 2)
        if spec.softcap is not None:
            logits = spec.softcap * torch.tanh(logits / spec.softcap)
        logits = _masked(logits, mask, start, stop, key.shape[2] - queries + start if causal else None)
        weights = _softmax(logits, spec.sinks)
        blocks.append((weights.unflatten(1, (-1, group)) @ values).flatten(1, 2))
    return torch.cat(blocks, dim=2).transpose(1, 2).to(query.dtype).contiguous()


def _masked(logits: Tensor, mask: Tensor | None, start: int, stop: int, diagonal: int | None) -> Tensor:
    """Logits of queries start..stop; `diagonal`: query `start` sees this many keys and its own, if causal."""
    lowest = torch.finfo(logits.dtype).min
    if mask is not None:
        part = mask[:, :, start:stop]
        return logits.masked_fill(~part, lowest) if part.dtype == torch.bool else logits + part
    if diagonal is None:
        return logits
    hidden = torch.ones(logits.shape[-2:], dtype=torch.bool, device=logits.device).triu(diagonal + 1)
    return logits.masked_fill(hidden, lowest)


def _softmax(logits: Tensor, sinks: Tensor | None) -> Tensor:
    """Softmax over the keys, with one extra logit per head in the denominator where the model has sinks [Hq]."""
    if sinks is None:
        return logits.softmax(dim=-1)
    extra = sinks.float().view(1, -1, 1, 1).expand(*logits.shape[:-1], 1)
    return torch.cat([logits, extra], dim=-1).softmax(dim=-1)[..., :-1]
