"""The results that a cache that folds must give: nothing is ever freed here, and evicted entries are masked instead.

A float64 copy of a model runs over transformers' own cache with an attention function that keeps, per layer and KV
head, the list of positions a method would still hold. Plain lists and loops; no code is shared with the package.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, DynamicCache, PreTrainedModel
from transformers.masking_utils import sdpa_mask

SINKS, KERNEL = 4, 7
KVEC_WIDE, KVEC_SURE = 5, 0.25
RKV_HEADS, THETA = 2, 10_000.0
"""KV heads and rotary base of the models that these are tried on."""


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
    own: list[list[float]] = field(default_factory=list)
    """Per head, K-VEC's votes P of what it held when it was scored last, without the window."""
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
            if self.rule.scorer.startswith("kvec"):
                sure = int(KVEC_SURE * max(0, slots[head] - self.rule.window))
                best = sorted(range(len(self.own[head])), key=lambda place, p=self.own[head]: (-p[place], place))
                scores[head] = [torch.inf if t in best[:sure] else score for t, score in enumerate(scores[head])]
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
        if self.rule.scorer.startswith("rkv"):
            return [self.rkv(h, held[h], keys[h]) for h in range(heads)]
        if self.rule.scorer.startswith("kvec"):
            return self.kvec(held, keys)
        if self.rule.scorer.startswith(("expectedattention", "triattention")):
            score = _tri if self.rule.scorer.startswith("tri") else _expected
            asked = [self.queries[h * group : (h + 1) * group] for h in range(heads)]
            return [score(asked[h], keys[h], held[h], self.scaling) for h in range(heads)]
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

    def rkv(self, head: int, held: list[int], keys: Tensor) -> list[float]:
        """R-KV of keys [N, D] of one head, λ = 0.1, T = 0.5."""
        assert self.queries is not None
        before = len(held) - self.rule.window
        if before <= 0:
            return [torch.inf] * len(held)
        group = self.queries.shape[0] // RKV_HEADS
        own = self.queries[head * group : (head + 1) * group, -self.rule.window :]
        logits = (own @ keys[held[:before]].T * self.scaling).amax(0)
        importance = _pooled(torch.cat([logits.softmax(-1).mean(0), torch.zeros(self.rule.window)]), self.rule.window)
        units = keys[held] / keys[held].norm(dim=-1, keepdim=True)
        cosine = (units @ units.T).fill_diagonal_(0)
        for row in cosine:
            alike = (row > 0.5).nonzero().flatten().tolist()
            if alike:
                row[alike[-1]] = 0
        redundant = cosine.mean(0).softmax(0).tolist()
        scores = [0.1 * i - 0.9 * r for i, r in zip(importance, redundant, strict=True)]
        return scores[:before] + [torch.inf] * self.rule.window

    def kvec(self, held: list[list[int]], keys: Tensor) -> list[list[float]]:
        """P' of K-VEC with δ = 1 and λ = 1; the votes P are kept for the choice."""
        assert self.queries is not None
        seen, heads = self.queries.shape[1], len(held)
        group, window = self.queries.shape[0] // heads, self.rule.window
        asking = list(range(max(0, seen - KVEC_WIDE), seen))
        paid = [
            torch.stack([self.weights(self.queries[q, asking], asking, keys[h], held[h]) for q in _group(h, group)])
            for h in range(heads)
        ]  # [G, rows, held] of every head
        outside = [max(0, len(each) - window) for each in held]
        near = [_pooled(each[:, -window:].mean((0, 1)), window)[:n] for each, n in zip(paid, outside, strict=True)]
        spread = [float(torch.tensor(each).std(correction=0)) if each else 0.0 for each in near]
        unfocused = sorted(range(heads), key=lambda h: (spread[h], h))[0]
        near[unfocused] = _pooled(paid[unfocused].mean((0, 1)), window)[: outside[unfocused]]
        self.own = near
        place = next(index for index, layer in _layers.items() if layer is self)
        scores = []
        for h in range(heads):
            adjusted = []
            for column, token in enumerate(held[h][: outside[h]]):
                importance = 0.0
                for row in range(len(asking) - min(window, len(asking)), len(asking)):
                    importance += max(
                        float(paid[o][:, row, held[o].index(token)].max()) for o in range(heads) if token in held[o]
                    )
                earlier = [_layers[index].kept or [] for index in range(place)]
                covered = sum(any(token in kept for kept in layer) for layer in earlier)
                adjusted.append(near[h][column] + importance / window * (1 - covered / (place + 1)))
            scores.append(adjusted + [torch.inf] * (len(held[h]) - outside[h]))
        return scores


def _group(head: int, group: int) -> range:
    return range(head * group, (head + 1) * group)


def _complex(states: Tensor, positions: Sequence[int]) -> list[list[complex]]:
    """The pairs of rotated states [n, D] before their rotation, channels j and j + D/2 together (Llama's)."""
    half = states.shape[-1] // 2
    turned = []
    for state, position in zip(states.tolist(), positions, strict=True):
        turns = [position * THETA ** (-f / half) for f in range(half)]
        turned.append([complex(state[f], state[f + half]) * _unit(-turns[f]) for f in range(half)])
    return turned


def _unit(angle: float) -> complex:
    return complex(math.cos(angle), math.sin(angle))


def _tri(queries: Tensor, keys: Tensor, held: list[int], scaling: float) -> list[float]:
    """TriAttention of keys [N, D] of one head, for queries [G, N, D] of its group."""
    seen, half = queries.shape[1], keys.shape[-1] // 2
    after = [token for token in held if token >= SINKS]
    if not after:
        return [torch.inf] * len(held)
    members = []
    for own in queries:
        asked = _complex(own[SINKS:], range(SINKS, seen))
        center = [sum(each[f] for each in asked) / len(asked) for f in range(half)]
        sizes = [sum(abs(each[f]) for each in asked) / len(asked) for f in range(half)]
        worth = []
        for token, key in zip(after, _complex(keys[after], after), strict=True):
            total = 0.0
            for f in range(half):
                turns = [(seen + 2**k - token) * THETA ** (-f / half) for k in range(17)]
                product = center[f] * key[f].conjugate()
                total += sum((product * _unit(turn)).real for turn in turns) / 17
                total += (sizes[f] - abs(center[f])) * abs(key[f])
            worth.append(total)
        values = torch.tensor(worth, dtype=torch.float64)
        members.append((values - values.mean()) / values.std(correction=0).clamp(min=1e-6))
    return [torch.inf] * (len(held) - len(after)) + torch.stack(members).amax(0).tolist()


def _expected(queries: Tensor, keys: Tensor, held: list[int], scaling: float) -> list[float]:
    """ExpectedAttention without the values' norm of keys [N, D] of one head, for queries [G, N, D] of its group."""
    seen, dim = queries.shape[1], keys.shape[-1]
    after = [token for token in held if token >= SINKS]
    if not after:
        return [torch.inf] * len(held)
    half, ahead = dim // 2, torch.zeros(dim, dim, dtype=torch.float64)
    for f in range(half):
        turns = [(seen + step) * THETA ** (-f / half) for step in range(512)]
        cos, sin = (sum(map(part, turns)) / 512 for part in (math.cos, math.sin))
        ahead[f, f] = ahead[f + half, f + half] = cos
        ahead[f + half, f], ahead[f, f + half] = sin, -sin
    shares = torch.zeros(len(after), dtype=torch.float64)
    for own in queries:
        pairs = torch.tensor(_complex(own[SINKS:], range(SINKS, seen)), dtype=torch.complex128)
        asked = torch.cat([pairs.real, pairs.imag], dim=1)
        mean, spread = ahead @ asked.mean(0), ahead @ asked.T.cov(correction=0).reshape(dim, dim) @ ahead.T
        some = keys[after]
        logits = scaling * some @ mean + scaling**2 / 2 * ((some @ spread) * some).sum(-1)
        shares += logits.softmax(0) / len(queries)
    return [torch.inf] * (len(held) - len(after)) + shares.tolist()


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
