"""The results that a compressed cache must give: dense attention with the evicted entries masked, per head.

The oracle runs a model once over prompt and continuation with plain float attention, in which a query after the
prompt sees of the prompt only the positions that were kept for its KV head. It shares no code with the package.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer, LinearAttentionAndFullAttentionLayer
from transformers.masking_utils import sdpa_mask

Kept = Callable[[int], Sequence[Tensor] | None]
"""Layer index -> kept positions per KV head, or None for layers that keep everything."""

_state: dict[str, object] = {}


def explicit_attention(module, query, key, value, attention_mask, scaling, softcap=None, s_aux=None, **kwargs):
    """Plain attention in float64, with an eviction mask per layer and head where one is set."""
    group = query.shape[1] // key.shape[1]
    key, value = (x.double().repeat_interleave(group, dim=1) for x in (key, value))
    logits = query.double() @ key.mT * scaling
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    queries, keys = logits.shape[-2:]
    if attention_mask is not None:
        logits = logits.masked_fill(~attention_mask[..., :keys], -torch.inf)
    elif queries > 1:
        logits = logits.masked_fill(~torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries), -torch.inf)
    if (evicted := _evicted(module, logits, group)) is not None:
        logits = logits.masked_fill(evicted, -torch.inf)
    if s_aux is not None:
        extra = s_aux.double().view(1, -1, 1, 1).expand(*logits.shape[:-1], 1)
        logits = torch.cat([logits, extra], dim=-1)
    weights = logits.softmax(dim=-1).nan_to_num(0)[..., :keys]
    return (weights @ value).transpose(1, 2).to(query.dtype).contiguous(), None


def _evicted(module, logits: Tensor, group: int) -> Tensor | None:
    if "kept" not in _state:
        return None
    kept = _state["kept"](_producer(module))  # type: ignore[operator]
    if kept is None:
        return None
    prompt = int(_state["prompt"])  # type: ignore[call-overload]
    evicted = torch.zeros(logits.shape[1:], dtype=torch.bool)
    for head, positions in enumerate(kept):
        gone = torch.ones(prompt, dtype=torch.bool)
        gone[positions] = False
        evicted[head * group : (head + 1) * group, prompt:, :prompt] = gone
    return evicted


def _producer(module) -> int:
    """The layer whose keys this layer attends over: its own, unless layers share them."""
    if not getattr(module, "is_kv_shared_layer", False):
        return int(module.layer_idx)
    config = module.config
    first_shared = config.num_hidden_layers - config.num_kv_shared_layers
    types = config.layer_types
    return max(i for i in range(first_shared) if types[i] == types[module.layer_idx])


AttentionInterface.register("test-oracle", explicit_attention)
AttentionMaskInterface.register("test-oracle", sdpa_mask)


@contextmanager
def oracle_attention(model: PreTrainedModel, kept: Kept | None = None, prompt: int = 0) -> Iterator[None]:
    """Within, the model attends with the oracle's function; `kept` masks for queries after `prompt` tokens."""
    before = model.config.get_text_config(decoder=True)._attn_implementation
    model.set_attn_implementation("test-oracle")
    if kept is not None:
        _state.update(kept=kept, prompt=prompt)
    try:
        yield
    finally:
        _state.clear()
        model.set_attn_implementation(before)


def masked_logits(model: PreTrainedModel, ids: Tensor, prompt: int, kept: Kept) -> Tensor:
    """Logits [R, N, V] of ids, with the evicted prompt entries masked for every query after the prompt."""
    with torch.no_grad(), oracle_attention(model, kept, prompt):
        return model(input_ids=ids, use_cache=False).logits


def full_layers(model: PreTrainedModel) -> list[int]:
    """Indices of the full-attention layers that hold keys of their own."""
    layers = DynamicCache(config=model.config.get_text_config(decoder=True)).layers
    return [i for i, layer in enumerate(layers) if type(layer) in (DynamicLayer, LinearAttentionAndFullAttentionLayer)]
