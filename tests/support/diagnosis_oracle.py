"""Every measure of a diagnosis from its definition, in float64, token by token and head by head."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

from support.oracle import explicit_attention, full_layers

_captured: dict[int, dict] = {}


def capturing_attention(module, query, key, value, attention_mask, scaling, softcap=None, s_aux=None, **kwargs):
    """Plain attention that notes what every layer was given."""
    _captured[module.layer_idx] = {
        "queries": query[0].double().numpy(),
        "keys": key[0].double().numpy(),
        "values": value[0].double().numpy(),
        "scaling": scaling,
        "softcap": softcap,
        "sinks": None if s_aux is None else s_aux.double().numpy(),
    }
    return explicit_attention(module, query, key, value, attention_mask, scaling, softcap, s_aux, **kwargs)


AttentionInterface.register("test-capture", capturing_attention)
AttentionMaskInterface.register("test-capture", sdpa_mask)


def dense_layers(model, ids):
    """Inputs of the full-attention layers of the uncompressed model, in order."""
    _captured.clear()
    model.set_attn_implementation("test-capture")
    with torch.no_grad():
        model(input_ids=ids, use_cache=False)
    model.set_attn_implementation("winnow")
    return [_captured[index] for index in full_layers(model)]


def weights_of(layer, head, query, seen):
    """(unnormalized weights over the tokens `seen`, that of the sink) of one query of one query head."""
    group = len(layer["queries"]) // len(layer["keys"])
    logits = [float(layer["keys"][head // group][t] @ layer["queries"][head][query]) * layer["scaling"] for t in seen]
    if layer["softcap"] is not None:
        logits = [layer["softcap"] * math.tanh(logit / layer["softcap"]) for logit in logits]
    sink = -math.inf if layer["sinks"] is None else layer["sinks"][head]
    top = max([*logits, sink], default=0.0)
    return [math.exp(logit - top) for logit in logits], math.exp(sink - top)


def output_of(layer, head, query, seen):
    group = len(layer["queries"]) // len(layer["keys"])
    weights, sink = weights_of(layer, head, query, seen)
    if not seen:
        return np.zeros(layer["values"].shape[-1])
    total = sum(w * layer["values"][head // group][t] for w, t in zip(weights, seen, strict=True))
    return total / (sum(weights) + sink)


def oracle_mass(layer, kept, queries):
    """[H]"""
    heads, length, group = len(kept), layer["keys"].shape[1], len(layer["queries"]) // len(kept)
    shares = []
    for head in range(heads * group):
        found = paid = 0.0
        for query in range(max(0, length - queries), length):
            weights, sink = weights_of(layer, head, query, range(query + 1))
            paid += sum(weights) / (sum(weights) + sink)
            found += sum(weights[t] for t in kept[head // group] if t <= query) / (sum(weights) + sink)
        shares.append(found / paid)
    return [sum(shares[h * group : (h + 1) * group]) / group for h in range(heads)]


def oracle_error(layer, kept, queries, packed=None):
    """`packed`: the layer as its slots come back from their packed form."""
    length, group = layer["keys"].shape[1], len(layer["queries"]) // len(kept)
    lost = whole = 0.0
    for head in range(len(layer["queries"])):
        for query in range(max(0, length - queries), length):
            full = output_of(layer, head, query, list(range(query + 1)))
            reduced = output_of(packed or layer, head, query, [t for t in kept[head // group] if t <= query])
            lost += ((full - reduced) ** 2).sum()
            whole += (full**2).sum()
    return math.sqrt(lost / whole)


def oracle_iou(kept):
    sets = [set(head) for head in kept]
    return [[1.0 if a is b else len(a & b) / len(a | b) if a | b else 0.0 for b in sets] for a in sets]


def oracle_cosine(queries, strength=0.0):
    """Mean over heads of the mean over pairs of a head's queries [Hq, w, D]."""
    means = []
    for head in queries:
        if strength:
            head = diversified_by_definition(head, strength)
        pairs = [a @ b / np.linalg.norm(a) / np.linalg.norm(b) for a, b in combinations(head, 2)]
        means.append(sum(pairs) / len(pairs))
    return sum(means) / len(means)


def diversified_by_definition(head, strength):
    """[w, D] of one head; ApertureKV, Eq. 9-11."""
    common = head.mean(0) / np.linalg.norm(head.mean(0))
    return np.stack([q + strength * (q - (q @ common) * common) for q in head])


def oracle_divergence(layer, window, strength):
    """[Hq, Hq]: JSD of softmax(mean over the window of the diversified attention to the tokens before it)."""
    length = layer["keys"].shape[1]
    window, seen = min(window, length), range(length - min(window, length))
    if not seen:
        return np.zeros((len(layer["queries"]),) * 2)
    diverse = [diversified_by_definition(head[-window:], strength) for head in layer["queries"]]
    queries = [np.concatenate([head[:-window], ends]) for head, ends in zip(layer["queries"], diverse, strict=True)]
    distributions = []
    for head in range(len(queries)):
        mean = np.zeros(len(seen))
        for query in range(length - window, length):
            weights, sink = weights_of(layer | {"queries": queries}, head, query, seen)
            mean += np.array(weights) / (sum(weights) + sink) / window
        distributions.append(np.exp(mean) / np.exp(mean).sum())
    return [[_jsd(p, q) for q in distributions] for p in distributions]


def _jsd(p, q):
    middle = (p + q) / 2
    return 0.5 * sum(math.log(a / m) * a + math.log(b / m) * b for a, b, m in zip(p, q, middle, strict=True))


def plain(kept):
    """Kept positions of every head as lists."""
    return [positions.tolist() for positions in kept]


def oracle_channels(layer, window):
    """([H], [H]): coefficient of variation, and share of a head's fixed channels that are a token's own."""
    heads, length, dim = layer["keys"].shape
    group, half = len(layer["queries"]) // heads, math.ceil(dim / 2)
    variations, overlaps = [], []
    for head in range(heads):
        asked = [q for each in layer["queries"][head * group : (head + 1) * group] for q in each[-window:]]
        norms = [math.sqrt(sum(q[j] ** 2 for q in asked) / len(asked)) for j in range(dim)]
        saliency = [[norms[j] * abs(key[j]) for j in range(dim)] for key in layer["keys"][head]]
        of_channels = []
        for j in range(dim):
            mean = sum(row[j] for row in saliency) / length
            deviation = math.sqrt(sum((row[j] - mean) ** 2 for row in saliency) / length)
            of_channels.append(deviation / mean if mean else 0.0)
        variations.append(sum(of_channels) / dim)
        fixed = _best([sum(row[j] ** 2 for row in saliency) for j in range(dim)], half)
        overlaps.append(sum(len(fixed & _best(row, half)) for row in saliency) / half / length)
    return variations, overlaps


def _best(values, count):
    return set(sorted(range(len(values)), key=lambda j: (-values[j], j))[:count])


def oracle_cosines(queries, strength=0.0):
    """[Hq, w, w] of a layer's queries [Hq, w, D]."""
    heads = [diversified_by_definition(head, strength) if strength else head for head in queries]
    return [[[a @ b / np.linalg.norm(a) / np.linalg.norm(b) for b in head] for a in head] for head in heads]
