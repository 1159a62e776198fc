"""KVzip by its definition: prompt and replay through the model in one piece, attention and scores in float64, in loops.

A replay behind the whole prompt is what the model would read if both were one text, so the oracle needs no cache. It
shares no code with the package.
"""

from __future__ import annotations

from contextlib import contextmanager

import torch
from torch import Tensor
from transformers import PreTrainedModel

from support import oracle

FIRST, LATER, ANSWER = [5, 6, 7], [8, 9], [10]
"""Tokens that stand for the words of a replay."""


def parts(prompt: list[int], chunk: int) -> list[tuple[int, int, list[int]]]:
    """Start, stop and all tokens of every part of the replay."""
    found, start = [], 0
    while start < len(prompt):
        stop = min(start + chunk, len(prompt))
        before = prompt[max(0, start - min(8, chunk)) : start]
        request = LATER + before if start else FIRST
        found.append((start, stop, request + ANSWER + prompt[start:stop]))
        start = stop
    return found


@contextmanager
def captured(model: PreTrainedModel):
    """Queries, keys, values, scaling, capping and sinks of every attention module, and norms of what it is given."""
    seen: dict[int, dict] = {}
    plain = oracle.explicit_attention

    def attention(module, query, key, value, mask, scaling, softcap=None, s_aux=None, **kwargs):
        facts = seen.setdefault(module.layer_idx, {})
        facts |= {"q": query[0], "k": key[0], "v": value[0], "scale": scaling, "cap": softcap, "aux": s_aux}
        return plain(module, query, key, value, mask, scaling, softcap=softcap, s_aux=s_aux, **kwargs)

    def note(module, given, named):
        hidden = given[0] if given else named["hidden_states"]
        seen.setdefault(module.layer_idx, {})["norm"] = hidden[0].double().norm(dim=-1)
        seen[module.layer_idx]["module"] = module

    hooks = [
        module.register_forward_pre_hook(note, with_kwargs=True)
        for module in model.modules()
        if hasattr(module, "layer_idx") and "Attention" in type(module).__name__
    ]
    oracle.AttentionInterface.register("test-oracle", attention)
    try:
        with torch.no_grad(), oracle.oracle_attention(model):
            yield seen
    finally:
        oracle.AttentionInterface.register("test-oracle", plain)
        for hook in hooks:
            hook.remove()


def kvzip_scores(model: PreTrainedModel, prompt: Tensor, chunk: int, sinks: int, plus: bool) -> dict[int, Tensor]:
    """Layer -> [H, N] float64 scores of a prompt [N]."""
    tokens = prompt.tolist()
    scores: dict[int, Tensor] = {}
    for start, stop, read in parts(tokens, chunk):
        with captured(model) as seen:
            model(torch.tensor([tokens + read]), use_cache=False)
        for layer, facts in seen.items():
            if "q" not in facts:
                continue
            heads = facts["k"].shape[0]
            found = scores.setdefault(layer, torch.zeros(heads, len(tokens), dtype=torch.float64))
            found[:, start:stop] = _chunk_scores(facts, len(tokens), (start, stop), min(sinks, start), plus)
    return scores


def _chunk_scores(facts: dict, length: int, chunk: tuple[int, int], first: int, plus: bool) -> Tensor:
    queries, keys, values = (facts[name].double() for name in "qkv")
    start, stop = chunk
    group = queries.shape[0] // keys.shape[0]
    best = torch.zeros(keys.shape[0], stop - start, dtype=torch.float64)
    for head in range(queries.shape[0]):
        of = head // group
        norms = _output_norms(facts, values[of, start:stop], head) if plus else None
        for row in range(length, queries.shape[1]):
            columns = [*range(first), *range(start, stop), *range(length, row + 1)]
            logits = torch.tensor([float(queries[head, row] @ keys[of, column]) for column in columns]).double()
            logits = logits * facts["scale"]
            if facts["cap"] is not None:
                logits = facts["cap"] * torch.tanh(logits / facts["cap"])
            weights = logits.exp()
            below = weights.sum() + (facts["aux"][head].double().exp() if facts["aux"] is not None else 0)
            paid = (weights / below)[first : first + stop - start]
            if norms is not None:
                paid = paid * norms / facts["norm"][row]
            best[of] = torch.maximum(best[of], paid)
    return best


def _output_norms(facts: dict, values: Tensor, head: int) -> Tensor:
    weight = facts["module"].o_proj.weight.double()
    dim = values.shape[-1]
    return (values @ weight[:, head * dim : (head + 1) * dim].T).norm(dim=-1)


def by_pool(scores: dict[int, Tensor], total: int, sinks: int) -> list[list[list[int]]]:
    """The tokens of every layer and head that are among the best of all, the first ones in any case."""
    entries = [
        (token >= sinks, -heads[head, token].item(), token, head, layer)
        for layer, heads in scores.items()
        for head in range(heads.shape[0])
        for token in range(heads.shape[1])
    ]
    kept = [[[] for _ in range(heads.shape[0])] for heads in scores.values()]
    for _, _, token, head, layer in sorted(entries)[:total]:
        kept[layer][head].append(token)
    return [[sorted(tokens) for tokens in heads] for heads in kept]
