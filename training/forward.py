"""A forward pass that leaves out work whose result the loss never reads."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel


def supervised_logits(model: PreTrainedModel, inputs: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Logits at the chosen positions only, and where they are in each row.

    Every layer but the last runs in full. The last one needs keys and values
    everywhere but queries and the MLP only where the loss looks, which is at
    one word in ten. The result equals that of the model's own forward pass.
    """
    base: Any = model.model
    positions = torch.arange(inputs.shape[1])[None]
    hidden = base.embed_tokens(inputs)
    rotations = base.rotary_emb(hidden, positions)
    for layer in base.layers[:-1]:
        hidden = layer(hidden, attention_mask=None, position_ids=positions, position_embeddings=rotations)
    # Rows with fewer chosen positions are filled up with others, dropped again at the end.
    count = int(chosen.sum(1).max())
    places = chosen.float().topk(count, dim=1).indices
    wanted = chosen.gather(1, places)
    last = _sparse_layer(base.layers[-1], hidden, places)[wanted]
    rows = torch.arange(len(inputs))[:, None].expand_as(places)[wanted]
    head: Any = model.lm_head
    return head(base.norm(last)), torch.stack([rows, places[wanted]])


def _sparse_layer(layer: Any, hidden: Tensor, places: Tensor) -> Tensor:
    """A decoder layer without rotary positions, for the queries at some places."""
    attention = layer.self_attn
    if attention.use_rope:
        raise ValueError("the last layer must not use rotary positions")
    size = attention.head_dim
    index = places[..., None].expand(-1, -1, hidden.shape[-1])
    normed, asking = layer.input_layernorm(hidden), hidden.gather(1, index)

    def heads(states: Tensor) -> Tensor:
        return states.unflatten(-1, (-1, size)).transpose(1, 2)

    queries = heads(attention.q_proj(normed.gather(1, index)))
    keys, values = heads(attention.k_proj(normed)), heads(attention.v_proj(normed))
    seen = torch.arange(hidden.shape[1]) <= places[..., None]
    read = functional.scaled_dot_product_attention(queries, keys, values, attn_mask=seen[:, None], enable_gqa=True)
    asking = asking + attention.o_proj(read.transpose(1, 2).flatten(-2))
    return asking + layer.mlp(layer.post_attention_layernorm(asking))
