"""Tokens that kvpress keeps of given layers. Run by test_peer_parity in a process of its own.

Importing kvpress replaces functions of transformers, hence the process. Reads cases and tensors from the .npz
named first, writes the kept positions of every case to the one named second.
"""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace
from typing import Any, NamedTuple

import kvpress
import numpy as np
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, DynamicCache, LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding


class Layer(NamedTuple):
    """The layer of a case: [Hq, N, D] queries, [H, N, D] keys and values, [Hq, D, E] output projection."""

    queries: Tensor
    keys: Tensor
    values: Tensor
    output_projection: Tensor


def attention_module(case: dict[str, Any], layer: Layer) -> nn.Module:
    """As much of an attention layer as scores depend on: queries before their rotation come in as hidden states."""
    query_heads, dim, width = layer.output_projection.shape
    module = nn.Module()
    module.q_proj = nn.Identity()
    module.head_dim = dim
    module.layer_idx = case["layer"]
    module.config = SimpleNamespace(
        num_attention_heads=case["heads"] * case["group"],
        num_key_value_heads=case["heads"],
        num_hidden_layers=case["layers"],
        head_dim=dim,
        hidden_size=width,
        _attn_implementation="sdpa",
    )
    module.num_key_value_groups = case["group"]
    module.o_proj = nn.Linear(query_heads * dim, width, bias=False)
    module.o_proj.weight.data = layer.output_projection.flatten(0, 1).t().contiguous()
    module.rotary_emb = LlamaRotaryEmbedding(LlamaConfig(head_dim=dim))
    return module


def causal_attention(queries: Tensor, keys: Tensor, group: int) -> Tensor:
    """[1, Hq, N, N] for the press that reads the model's own attention weights."""
    logits = queries @ keys.repeat_interleave(group, dim=0).transpose(1, 2) / keys.shape[-1] ** 0.5
    future = torch.ones(logits.shape[-2:], dtype=torch.bool).triu(1)
    return logits.masked_fill(future, -torch.inf).softmax(dim=-1)[None]


def press_of(case: dict[str, Any]) -> Any:
    if case["duo"] is not None:
        return duo_attention(**case["duo"])
    press = getattr(kvpress, case["press"])(compression_ratio=case["ratio"], **case["options"])
    if case.get("curves") is not None:
        # With a table of its own instead of a published one.
        wrapped = kvpress.LUKVPress(press, compression_ratio=case["ratio"], sink=0, window=0)
        wrapped._budget_curves = np.array(case["curves"])
        return wrapped
    if case["safeguard"] is not None:
        heads_compete = kvpress.CriticalAdaKVPress if case["critical"] else kvpress.AdaKVPress
        return heads_compete(press, alpha_safeguard=case["safeguard"])
    if case["block"] is not None:
        return kvpress.BlockPress(press, block_size=case["block"])
    return kvpress.CriticalKVPress(press) if case["critical"] else press


def duo_attention(streaming: float, sinks: int, recent: int, scores: list[list[float]]) -> Any:
    """With scores of its own instead of a published pattern."""
    press = kvpress.DuoAttentionPress(head_compression_ratio=streaming)
    press.load_attention_pattern = lambda model: (sinks, recent, np.array(scores))
    press.post_init_from_model(SimpleNamespace(device="cpu"))
    return press


@torch.no_grad()
def kept(case: dict[str, Any], layer: Layer) -> list[list[int]]:
    """Positions per KV head; random values, each one of its kind, tell which were kept."""
    keys = layer.keys
    heads, length, dim = keys.shape
    module = attention_module(case, layer)
    hidden = layer.queries.transpose(0, 1).reshape(1, length, -1)
    ones = torch.ones(1, length, dim)
    weights = causal_attention(layer.queries, keys, case["group"]) if case["attentions"] else None
    rotation = {"position_embeddings": (ones, torch.zeros_like(ones))}
    _, values = press_of(case).compress(module, hidden, keys[None], layer.values[None], weights, rotation)
    if case["safeguard"] is None and case["duo"] is None and case.get("curves") is None:
        same = (values[0, :, :, None] == layer.values[:, None]).all(dim=-1)
        return [sorted(row.nonzero()[:, 1].tolist()) for row in same]
    _, masked_heads, masked = module.masked_key_indices
    keep = torch.ones(heads, length, dtype=torch.bool)
    keep[masked_heads, masked] = False
    return [row.nonzero()[:, 0].tolist() for row in keep]


def by_its_earlier_name(module: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Arguments with the cache by the name that kvpress looks for, as it was before transformers 5.24."""
    if "cache" in named:
        named["past_key_values"] = named.pop("cache")
    return given, named


@torch.no_grad()
def replayed(case: dict[str, Any]) -> list[list[int]]:
    """Positions per KV head, layer after layer, of a prompt that a model of a directory read twice."""
    model = AutoModelForCausalLM.from_pretrained(case["model"]).eval()
    for module in model.modules():
        module.register_forward_pre_hook(by_its_earlier_name, with_kwargs=True)
    ids = torch.tensor([case["tokens"]])
    with kvpress.KVzipPress(compression_ratio=case["ratio"], **case["options"])(model):
        model(ids, past_key_values=DynamicCache(config=model.config))
    kept = []
    for layer in model.model.layers:
        _, heads, tokens = layer.self_attn.masked_key_indices
        keep = torch.ones(model.config.num_key_value_heads, ids.shape[1], dtype=torch.bool)
        keep[heads, tokens] = False
        kept += [row.nonzero()[:, 0].tolist() for row in keep]
    return kept


def main(source: str, target: str) -> None:
    torch.set_num_threads(1)
    data = np.load(source)
    cases = json.loads(str(data["cases"]))
    results = []
    for case in cases:
        if case["press"] == "KVzipPress":
            results.append(replayed(case))
            continue
        layer = Layer(*(torch.from_numpy(data[f"{case['tensors']}-{name}"]) for name in Layer._fields))
        results.append(kept(case, layer))
    with open(target, "w", encoding="utf-8") as file:
        json.dump(results, file)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
