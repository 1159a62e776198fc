"""A model with packed caches, and its logits by dense attention over what their slots recover."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

import winnow
from support.families import build
from support.oracle import explicit_attention
from support.ready import ready
from winnow import CompressedCache, Method

N, BUDGET, NEW = 150, 60, 5
LAYERS, HEADS, GROUP, DIM = 3, 2, 2, 32
GREEDY: dict[str, Any] = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}


@cache
def made(dtype: torch.dtype = torch.float32) -> Any:
    """A Llama whose heads are wide enough for masks, scales and constants of heads to be the smaller part."""
    found = build("llama", head_dim=DIM).to(dtype)
    found.set_attn_implementation("winnow")
    found.generation_config.pad_token_id = 0
    return found


def composed(name: str, budget: int | str | None = BUDGET) -> Method:
    """A method by name; its head scores, where it needs some, are random ones."""
    return ready(name, budget, (LAYERS, HEADS)) if by_scores(name) else winnow.method(name, budget)


def by_scores(name: str) -> bool:
    """True if heads differ by their scores."""
    return any(part in name for part in ("headkv", "cokv", "bits(8, 4)", "mixedbits"))


def filled(model: Any, ids: Tensor, method: Method, **options: Any) -> CompressedCache:
    past = CompressedCache(model, method)
    with torch.no_grad():
        model(ids, past_key_values=past, **options)
    return past


def fed(model: Any, past: CompressedCache, tokens: Tensor) -> Tensor:
    """Logits [R, T, V] of tokens fed one by one after what a cache holds."""
    with torch.no_grad():
        steps = [model(step, past_key_values=past).logits for step in tokens.split(1, dim=1)]
    return torch.cat(steps, dim=1)


def dense_logits(model: Any, past: CompressedCache, ids: Tensor, length: int) -> Tensor:
    """Logits [1, T, V] of the tokens behind a prompt of `length`: plain attention over recovered keys and values.

    The prompt's slots come from `recover`, head by head, in dense tensors [H, N, D] in which all other positions are
    masked; the new tokens' keys and values come from the model's own projections.
    """
    dense = [recovered(past, layer) for layer in range(LAYERS)]
    new = ids[:, length:]
    count = new.shape[1]

    def attend(
        module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, scaling: float, **kwargs: Any
    ) -> tuple[Tensor, None]:
        keys, values, kept = dense[module.layer_idx]
        seen = torch.cat(
            [kept[:, None].expand(-1, count, -1), torch.ones(HEADS, count, count, dtype=torch.bool).tril()], -1
        )
        mask = seen.repeat_interleave(GROUP, 0)[None]
        whole = (torch.cat([keys, key[0]], 1)[None], torch.cat([values, value[0]], 1)[None])
        return explicit_attention(module, query, *whole, mask, scaling)

    positions = torch.arange(length, length + count)[None]
    with torch.no_grad(), attending(model, attend):
        return model(new, position_ids=positions, use_cache=False).logits


@contextmanager
def attending(model: Any, function: Any) -> Iterator[None]:
    """Within, a model attends with a function of the test's own."""
    AttentionInterface.register("test-recovered", function)
    AttentionMaskInterface.register("test-recovered", sdpa_mask)
    model.set_attn_implementation("test-recovered")
    try:
        yield
    finally:
        model.set_attn_implementation("winnow")


def recovered(past: CompressedCache, layer: int, row: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Keys [H, N, D], values [H, N, D] and which of them are kept [H, N], of one layer of one sequence."""
    prefix = past.compressed_layers()[layer].prefixes[row]
    assert prefix is not None
    keys, values = torch.zeros(HEADS, prefix.length, DIM), torch.zeros(HEADS, prefix.length, DIM)
    kept = torch.zeros(HEADS, prefix.length, dtype=torch.bool)
    found_keys, found_values = prefix.block.recover(torch.arange(len(prefix.positions)))
    for head, (start, stop) in enumerate(pairwise(prefix.block.offsets.tolist())):
        where = prefix.positions[start:stop].long()
        keys[head, where], values[head, where] = found_keys[start:stop], found_values[start:stop]
        kept[head, where] = True
    return keys, values, kept


def prefix_bytes(past: CompressedCache) -> int:
    """Bytes of the compressed prompt, without the tail."""
    return sum(sum(each.bytes().values()) for layer in past.compressed_layers() for each in layer.held_prefixes())
