"""The results of any cache that does not fold: dense attention over what its slots recover, all else masked.

A model runs once over prompt and continuation. Queries of the prompt see its own keys and values; later ones see of the
prompt what the cache recovers for their KV head. Padding and windows are those of transformers' own masks.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from support.oracle import _producer, explicit_attention
from support.packed_caches import attending
from winnow import CompressedCache


class Recovered(NamedTuple):
    """A compressed prompt of N tokens in one layer, as if nothing had been packed."""

    keys: Tensor
    """[R, H, N, D], zero where nothing is kept."""
    values: Tensor
    """[R, H, N, Dv]"""
    kept: Tensor
    """[R, H, N] bool"""


def recovered(layer: Any, valid: Tensor) -> Recovered:
    """The prefixes of a layer, at the columns [R, N] that are no padding."""
    tail, rows, length = layer.tail, *valid.shape
    heads = tail.keys.shape[1]
    keys = torch.zeros(rows, heads, length, tail.keys.shape[-1], dtype=torch.float64)
    values = torch.zeros(rows, heads, length, tail.values.shape[-1], dtype=torch.float64)
    kept = torch.zeros(rows, heads, length, dtype=torch.bool)
    for row, prefix in enumerate(layer.prefixes):
        columns = valid[row].nonzero().flatten()
        found_keys, found_values = prefix.block.recover(torch.arange(len(prefix.positions)))
        for head, (start, stop) in enumerate(pairwise(prefix.block.offsets.tolist())):
            where = columns[prefix.positions[start:stop].long()]
            keys[row, head, where] = found_keys[start:stop].double()
            values[row, head, where] = found_values[start:stop].double()
            kept[row, head, where] = True
    return Recovered(keys, values, kept)


def recovered_logits(
    model: Any, past: CompressedCache, ids: Tensor, mask: Tensor, positions: Tensor, prompt: int
) -> Tensor:
    """Logits [R, N, V] of ids [R, N] with their mask and positions [R, N], of which `prompt` columns are compressed."""
    dense = {
        index: recovered(layer, mask[:, :prompt].bool())
        for index, layer in enumerate(past.layers)
        if hasattr(layer, "prefixes")
    }

    def attend(
        module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, scaling: float, **kwargs: Any
    ) -> tuple[Tensor, None]:
        own, _ = explicit_attention(module, query, key, value, attention_mask, scaling, **kwargs)
        held = dense.get(_producer(module))
        if held is None:
            return own, None
        seen = _causal(query) if attention_mask is None else attention_mask
        group = query.shape[1] // key.shape[1]
        kept = held.kept.repeat_interleave(group, dim=1)[:, :, None].expand(-1, -1, ids.shape[1] - prompt, -1)
        seen = seen[:, :, prompt:].expand(len(ids), query.shape[1], -1, -1).clone()
        seen[..., :prompt] &= kept
        keys = torch.cat([held.keys, key[:, :, prompt:].double()], dim=2)
        values = torch.cat([held.values, value[:, :, prompt:].double()], dim=2)
        later, _ = explicit_attention(module, query[:, :, prompt:], keys, values, seen, scaling, **kwargs)
        return torch.cat([own[:, :prompt], later.to(own.dtype)], dim=1), None

    with torch.no_grad(), attending(model, attend):
        return model(ids, attention_mask=mask, position_ids=positions, use_cache=False).logits


def _causal(query: Tensor) -> Tensor:
    length = query.shape[2]
    return torch.ones(1, 1, length, length, dtype=torch.bool).tril()
