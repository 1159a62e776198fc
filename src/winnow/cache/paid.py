"""Attention over a prompt, and what its queries paid every token: in one pass where the compiled kernels serve."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from winnow.cache.dense import dense_attention, padded_attention
from winnow.cache.gradients import wants_gradients
from winnow.cache.padding import Places, on_host, places_of
from winnow.kernels import prefill
from winnow.kernels.interface import AttentionSpec
from winnow.kernels.without_autocast import without_autocast
from winnow.score.window import attention_paid
from winnow.view import LayerView


class PaidAttention(NamedTuple):
    """Attention of the last Q tokens of R prompts, or parts of them."""

    output: Tensor
    """[R, Q, Hq, Dv], zero for padding."""
    paid: Tensor
    """[R, H, N] fp32, what the Q queries paid, the mean over the query group; 0 for padding."""


def paid_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    valid: Tensor | None,
    spec: AttentionSpec,
    dropout: float = 0.0,
) -> PaidAttention:
    """Causal attention of query [R, Hq, Q, D] over key [R, H, N, D] and value [R, H, N, Dv].

    valid: [R, N] bool, False for padding, which neither sees nor is seen; None where there is none. Where the kernels
    do not serve, or gradients or dropout are wanted, what was paid takes a pass of its own behind the dense one.
    """
    one_pass = prefill.supports(query, key) and not dropout and not wants_gradients(query, key, value)
    if one_pass:
        output = query.new_zeros(query.shape[0], query.shape[2], query.shape[1], value.shape[-1])
    elif valid is None:
        output = dense_attention(module, query, key, value, None, spec, dropout)
    else:
        output = padded_attention(module, query, key, value, valid, spec)
    paid = torch.zeros(key.shape[:3], dtype=torch.float32, device=key.device)
    for row in range(query.shape[0]):
        tokens, asking = _present(valid, row, query.shape[2])
        prompt = prefill.Prompt(query[row][:, asking], key[row][:, tokens], value[row][:, tokens])
        if not prompt.queries.shape[1]:
            continue
        if one_pass:
            output[row, asking], paid[row][:, tokens] = prefill.attend(prompt, spec)
        else:
            paid[row][:, tokens] = _pay(prompt, spec)
    return PaidAttention(output, paid)


def _present(valid: Tensor | None, row: int, queries: int) -> tuple[Places, Places]:
    """The tokens of a row that are no padding, and those of its queries."""
    if valid is None:
        return slice(None), slice(None)
    there = on_host(valid)[row]
    return places_of(there, valid.device), places_of(there[-queries:], valid.device)


@torch.no_grad()
def _pay(prompt: prefill.Prompt, spec: AttentionSpec) -> Tensor:
    queries, keys, values = (each.detach() for each in prompt)
    view = LayerView(0, 1, queries, keys, values, spec.scaling, spec.softcap, spec.sinks)
    with without_autocast(keys.device):
        return attention_paid(view, queries.shape[1])
