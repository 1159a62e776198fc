"""The results that a cache that folds must give: nothing is ever freed here, and evicted entries are masked instead.

A float64 copy of a model runs over transformers' own cache with an attention function that keeps, per layer and KV
head, the list of positions a method would still hold. Plain lists and loops; no code is shared with the package.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, DynamicCache, PreTrainedModel
from transformers.masking_utils import sdpa_mask

SINKS, KERNEL = 4, 7


@dataclass(frozen=True)
class Rule:
    """A method in the oracle's words."""

    scorer: str
    budget: int
    """Slots per head on average."""
    every: int | None
    window: int = 0
    compete: bool = False
    """Heads share a layer's slots by their scores (Ada without a floor) instead of evenly."""
    turns: int | None = None
    """Tokens that stay dense at most when several at a time were attended to; None: all, up to `every`."""

    def folds(self, dense: int) -> bool:
        """True if so many dense tokens are folded before another one comes."""
        return self.every is not None and dense >= self.every

    def folds_turn(self, dense: int) -> bool:
        """True if so many tokens do not stay dense when several at a time were attended to."""
        return self.folds(dense) or (self.turns is not None and dense > self.turns)

    @property
    def name(self) -> str:
        window = f"(window={self.window})" if self.scorer == "snapkv" else ""
        return f"{self.scorer}{window}{'+ada(floor=0.0)' if self.compete else ''}"


@dataclass
class Layer:
    """One sequence in one layer: what every head holds, as positions."""

    rule: Rule
    scaling: float
    kept: list[list[int]] | None = None
    tail: list[int] = field(default_factory=list)
    queries: Tensor | None = None
    paid: list[dict[int, float]] = field(default_factory=list)
    """Per head, what every token was paid so far, the mean over the query group."""

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Queries [Hq, Q, D] of the last tokens of keys [H, N, D]; returns [Hq, Q, Dv]."""
        heads, length, _ = keys.shape
        new = list(range(length - queries.shape[1], length))
        if self.kept is not None and self.rule.folds(len(self.tail)):
            self.kept = self.select([kept + self.tail for kept in self.kept], keys)
            self.tail = []
        self.tail += new
        held = [(self.kept[head] if self.kept else []) + self.tail for head in range(heads)]
        group = queries.shape[0] // heads
        self.paid = self.paid or [{} for _ in range(heads)]
        outputs = []
        for index, query in enumerate(queries):
            head = index // group
            weights = self.weights(query, new, keys[head], held[head])
            outputs.append(weights @ values[head][held[head]])
            for token, amount in zip(held[head], weights.sum(0).tolist(), strict=True):
                self.paid[head][token] = self.paid[head].get(token, 0.0) + amount / group
        self.queries = queries if self.queries is None else torch.cat([self.queries, queries], dim=1)
        if self.kept is None or (len(new) > 1 and self.rule.folds_turn(len(self.tail))):
            self.kept = self.select([(self.kept[head] if self.kept else []) + self.tail for head in range(heads)], keys)
            self.tail = []
        return torch.stack(outputs)

    def weights(self, query: Tensor, asking: Sequence[int], keys: Tensor, held: Sequence[int]) -> Tensor:
        """[Q, len(held)] attention of queries [Q, D] at positions `asking` over some positions of keys [N, D]."""
        logits = query @ keys[list(held)].T * self.scaling
        hidden = torch.tensor(held)[None] > torch.tensor(asking)[:, None]
        return logits.masked_fill(hidden, -torch.inf).softmax(-1)

    def select(self, held: list[list[int]], keys: Tensor) -> list[list[int]]:
        """Tokens that every head keeps of those it holds."""
        scores = self.scores(held, keys)
        heads = len(held)
        total = min(self.rule.budget * heads, sum(map(len, held)))
        if self.rule.compete:
            every = [(-score, place, head) for head in range(heads) for place, score in enumerate(scores[head])]
            winners = [head for _, _, head in sorted(every)[:total]]
            slots = [winners.count(head) for head in range(heads)]
        else:
            slots = [total // heads + (head < total % heads) for head in range(heads)]
        kept = []
        for head in range(heads):
            if self.rule.scorer.startswith("h2o"):
                recent = -(-slots[head] // 2)
                scores[head] = [
                    torch.inf if place >= len(held[head]) - recent else score
                    for place, score in enumerate(scores[head])
                ]
            order = sorted(range(len(held[head])), key=lambda place, s=scores[head]: (-s[place], place))
            kept.append(sorted(held[head][place] for place in order[: slots[head]]))
        return kept

    def scores(self, held: list[list[int]], keys: Tensor) -> list[list[float]]:
        """One number for everything a head holds; +inf: kept for sure."""
        assert self.queries is not None
        heads, group = len(held), self.queries.shape[0] // len(held)
        if self.rule.scorer == "knorm":
            return [[-float(keys[h, p].float().norm()) for p in held[h]] for h in range(heads)]
        if self.rule.scorer == "h2o":
            return [[self.paid[h][p] for p in held[h]] for h in range(heads)]
        if self.rule.scorer == "h2o(normalize=True)":
            return [[self.paid[h][p] / (held[h][-1] + 1 - p) for p in held[h]] for h in range(heads)]
        if self.rule.scorer == "keydiff":
            return [_keydiff(keys[h][held[h]]) for h in range(heads)]
        if self.rule.scorer == "streamingllm":
            return [[torch.inf if place < SINKS else place for place in range(len(held[h]))] for h in range(heads)]
        voting = 1 if self.rule.scorer == "tova" else self.rule.window
        seen = self.queries.shape[1]
        asking = list(range(max(0, seen - voting), seen))
        attention = [
            torch.stack(
                [
                    self.weights(self.queries[q, asking], asking, keys[h], held[h])
                    for q in range(h * group, (h + 1) * group)
                ]
            ).mean((0, 1))
            for h in range(heads)
        ]
        if self.rule.scorer == "tova":
            by_token: dict[int, float] = {}
            for h in range(heads):
                for place, token in enumerate(held[h]):
                    by_token[token] = by_token.get(token, 0.0) + float(attention[h][place]) / heads
            return [[by_token[token] for token in held[h]] for h in range(heads)]
        return [_pooled(each, self.rule.window) for each in attention]


def _pooled(attention: Tensor, window: int) -> list[float]:
    """Maximum over the neighbors, the window aside and kept for sure."""
    outside = max(0, len(attention) - window)
    reach = KERNEL // 2
    pooled = [float(attention[max(0, t - reach) : min(outside, t + reach + 1)].max()) for t in range(outside)]
    return pooled + [torch.inf] * (len(attention) - outside)


def _keydiff(keys: Tensor) -> list[float]:
    directions = keys / keys.norm(dim=-1, keepdim=True)
    mean = directions.mean(0)
    return (-(directions @ mean) / mean.norm()).tolist()


_layers: dict[int, Layer] = {}
_rule: list[Rule] = []


def _attention(module, query, key, value, attention_mask, scaling, **kwargs):
    layer = _layers.setdefault(module.layer_idx, Layer(_rule[0], scaling))
    return layer.attend(query[0], key[0], value[0])[None].transpose(1, 2), None


AttentionInterface.register("test-fold-oracle", _attention)
AttentionMaskInterface.register("test-fold-oracle", sdpa_mask)


class Expected:
    """Results of one sequence, chunk by chunk."""

    def __init__(self, model: PreTrainedModel, rule: Rule, ids: Tensor, chunks: Sequence[int]) -> None:
        """ids [N], of which the first chunk is the prompt."""
        twin = copy.deepcopy(model).double()
        twin.set_attn_implementation("test-fold-oracle")
        _layers.clear()
        _rule[:] = [rule]
        cache, logits, start = DynamicCache(config=twin.config), [], 0
        with torch.no_grad():
            for size in chunks:
                part = ids[None, start : start + size]
                logits.append(twin(part, past_key_values=cache, use_cache=True).logits[0])
                start += size
        self.logits = torch.cat(logits)
        """[N, V] float64"""
        self.kept = {index: layer.kept for index, layer in _layers.items()}
        self.tail = {index: layer.tail for index, layer in _layers.items()}
