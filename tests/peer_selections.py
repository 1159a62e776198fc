"""What kvpress keeps of given layers. Run by test_peer_parity in a process of its own.

Importing kvpress replaces functions of transformers, hence the process. Reads cases and tensors from the .npz
named first, writes the kept positions of every case to the one named second.
"""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace
from typing import Any

import kvpress
import numpy as np
import torch
from torch import Tensor, nn


def attention_module(case: dict[str, Any], dim: int) -> nn.Module:
    """As much of an attention layer as scores depend on: queries come in as hidden states."""
    module = nn.Module()
    module.q_proj = nn.Identity()
    module.head_dim = dim
    module.layer_idx = case["layer"]
    module.config = SimpleNamespace(
        num_attention_heads=case["heads"] * case["group"],
        num_key_value_heads=case["heads"],
        num_hidden_layers=case["layers"],
        _attn_implementation="sdpa",
    )
    return module


def causal_attention(queries: Tensor, keys: Tensor, group: int) -> Tensor:
    """[1, Hq, N, N] for the press that reads the model's own attention weights."""
    logits = queries @ keys.repeat_interleave(group, dim=0).transpose(1, 2) / keys.shape[-1] ** 0.5
    future = torch.ones(logits.shape[-2:], dtype=torch.bool).triu(1)
    return logits.masked_fill(future, -torch.inf).softmax(dim=-1)[None]


def kept(case: dict[str, Any], queries: Tensor, keys: Tensor) -> list[list[int]]:
    """Positions per KV head; values carry their position so that they tell which were kept."""
    heads, length, dim = keys.shape
    module = attention_module(case, dim)
    press = getattr(kvpress, case["press"])(compression_ratio=case["ratio"], **case["options"])
    if case["safeguard"] is not None:
        press = kvpress.AdaKVPress(press, alpha_safeguard=case["safeguard"])
    hidden = queries.transpose(0, 1).reshape(1, length, -1)
    ones = torch.ones(1, length, dim)
    values = torch.arange(length).float()[None, None, :, None].expand(1, heads, length, dim)
    weights = causal_attention(queries, keys, case["group"]) if case["attentions"] else None
    rotation = {"position_embeddings": (ones, torch.zeros_like(ones))}
    _, values = press.compress(module, hidden, keys[None], values, weights, rotation)
    if case["safeguard"] is None:
        return [sorted(row) for row in values[0, :, :, 0].long().tolist()]
    _, masked_heads, masked = module.masked_key_indices
    keep = torch.ones(heads, length, dtype=torch.bool)
    keep[masked_heads, masked] = False
    return [row.nonzero()[:, 0].tolist() for row in keep]


def main(source: str, target: str) -> None:
    torch.set_num_threads(1)
    data = np.load(source)
    cases = json.loads(str(data["cases"]))
    results = []
    for case in cases:
        queries, keys = (torch.from_numpy(data[f"{case['tensors']}-{name}"]) for name in ("queries", "keys"))
        results.append(kept(case, queries, keys))
    with open(target, "w", encoding="utf-8") as file:
        json.dump(results, file)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
