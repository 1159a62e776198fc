"""Attention that the last queries of a prompt pay to its keys: the base of most scorers.

Everything is computed in fp32 whatever the storage type, the query group of a KV head is folded into the
rows (keys are never repeated), and rows are taken in blocks so that memory stays linear in the prompt.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from winnow.kernels import prefill
from winnow.kernels.segments import AttentionSpec
from winnow.score import on_gpu
from winnow.score.blocks import numbers_at_once, tokens_at_once
from winnow.view import LayerView, last_queries

Reduce = Literal["mean", "max", "sum"]
Pool = Literal["max", "avg"]
Over = Literal["visible", "prefix"]

_BLOCK = 1 << 22
"""Probabilities to hold at once on a CPU (16 MiB in fp32): they should stay near it."""
_FEWEST_ROWS, _MOST_ROWS = 16, 64
"""Queries in a block: fewer waste the matrix product, more waste work above the causal diagonal."""
_CHUNK = 2048
"""Keys converted to fp32 at once on a CPU."""


class AttentionBlock(NamedTuple):
    """Attention of some consecutive queries."""

    first: int
    """Position of the first query in the prompt."""
    attention: Tensor
    """[H, G, r, M] probabilities of r queries over the M = first + r keys that the last of them sees."""


def attention_blocks(view: LayerView, rows: int) -> Iterator[AttentionBlock]:
    """Exact attention of the last `rows` queries, a block of rows at a time.

    A = softmax over the visible keys of q·k·scaling: causal, with the model's soft-capping and sinks. Blocks
    come in ascending order; `rows` larger than the prompt means all of it. An attention tensor may be reused
    by the caller until the next block is asked for.
    """
    length = view.keys.shape[1]
    rows = min(rows, length)
    queries, step = last_queries(view.queries, rows), _rows_at_once(view)
    for start in range(0, rows, step):
        block = queries[:, start : start + step]
        yield AttentionBlock(length - rows + start, _attention(view, block, length - rows + start))


def heads_in_parts(view: LayerView, rows: int) -> Iterator[LayerView]:
    """Views of some KV heads at a time, for matrices of what the last `rows` queries pay to all keys.

    A part has as many heads as a block of such a matrix has room for, and at least one. What attention takes is that
    of these heads: queries, keys, values, sinks and absent columns.
    """
    heads, length, _ = view.keys.shape
    group = view.queries.shape[0] // heads
    of_a_head = group * min(rows, _FEWEST_ROWS) * length
    step = max(1, numbers_at_once(view.keys.device, _BLOCK) // of_a_head)
    for start in range(0, heads, step):
        own, asking = slice(start, start + step), slice(start * group, (start + step) * group)
        yield view._replace(
            queries=view.queries[asking],
            keys=view.keys[own],
            values=view.values[own],
            sinks=None if view.sinks is None else view.sinks[asking],
            absent=None if view.absent is None else view.absent[own],
        )


def attention_mass(view: LayerView, rows: int) -> Tensor:
    """[H, G, N]: the attention every key receives from the last `rows` queries together, per query head."""
    heads, length, _ = view.keys.shape
    if on_gpu.serves(view):
        return on_gpu.normalized(view, min(rows, length)).paid(length)
    mass = view.keys.new_zeros((heads, view.queries.shape[0] // heads, length), dtype=torch.float32)
    for block in attention_blocks(view, rows):
        mass[..., : block.attention.shape[-1]] += block.attention.sum(dim=2)
    return mass


def attention_paid(view: LayerView, rows: int) -> Tensor:
    """[H, N]: the same, the mean over the query group; by the compiled kernels where they serve."""
    queries = last_queries(view.queries, rows)
    if view.absent is None and prefill.supports(queries, view.keys):
        return prefill.paid(queries, view.keys, AttentionSpec(view.scaling, view.softcap, view.sinks))
    if not on_gpu.serves(view):
        view = view._replace(keys=view.keys.float())  # once, not for every block of rows
    return reduce_group(attention_mass(view, rows), "mean")


def window_mass(view: LayerView, window: int, over: Over) -> Tensor:
    """[H, G, N - w]: what the last `window` queries pay to the tokens before them together; see `window_blocks`."""
    heads, length, _ = view.keys.shape
    if on_gpu.serves(view):
        visible = length if over == "visible" else length - window
        return on_gpu.normalized(view, window, visible).paid(length - window)
    mass = view.keys.new_zeros((heads, view.queries.shape[0] // heads, length - window), dtype=torch.float32)
    for attention in window_blocks(view, window, over):
        mass += attention.sum(dim=2)
    return mass


def window_blocks(view: LayerView, window: int, over: Over) -> Iterator[Tensor]:
    """[H, G, r, N - w]: attention of the last `window` queries to the tokens before them, some queries at a time.

    over: "visible": of all keys that they see; "prefix": as if there were none but those.
    """
    before = view.keys.shape[1] - window
    if over == "prefix":
        for queries in last_queries(view.queries, window).split(_rows_at_once(view), dim=1):
            yield _probabilities(view, _capped_logits(view, queries, before))
        return
    for block in attention_blocks(view, window):
        yield block.attention[..., :before]


def peaks(blocks: Iterator[Tensor], kernel: int, pool: Pool, absent: Tensor | None) -> Tensor:
    """[H, G, N - w]: the most that any query of some blocks [H, G, r, N - w] pays to each token, after pooling.

    Pooling spreads what a query pays over neighbors and leaves its sum as it was. absent: [H, N - w].
    """
    most: Tensor | None = None
    gaps = None if absent is None else absent[:, None, None]
    for block in blocks:
        pooled = pool_tokens(block, kernel, pool, gaps)
        if gaps is not None:
            pooled.masked_fill_(gaps, 0)  # an average reaches beyond the last token that is held
        paid, spread = (part.sum(dim=-1, keepdim=True) for part in (block, pooled))
        highest = pooled.mul_(paid / spread.clamp(min=torch.finfo(torch.float32).tiny)).amax(dim=2)
        most = highest if most is None else torch.maximum(most, highest)
    assert most is not None
    return most


def strongest_prefix_attention(view: LayerView, window: int) -> Tensor:
    """[H, N - w]: attention over the tokens before the window, of the largest logit of the query group.

    The mean over the last `window` queries; the model's attention sinks, one per query head, have no place in it.
    """
    heads, length, _ = view.keys.shape
    mass = view.keys.new_zeros((heads, length - window), dtype=torch.float32)
    first = 0
    for part in heads_in_parts(view, window):
        own = mass[first : first + len(part.keys)]
        for queries in last_queries(part.queries, window).split(_rows_at_once(part), dim=1):
            own += _capped_logits(part, queries, length - window).amax(dim=1).softmax(dim=-1).sum(dim=1)
        if part.absent is not None:
            own.masked_fill_(part.absent[:, : length - window], 0)
        first += len(own)
    return mass / window


def reduce_group(scores: Tensor, reduce: Reduce) -> Tensor:
    """[H, G, T] per query head -> [H, T] per KV head."""
    if reduce == "mean":
        return scores.mean(dim=1)
    return scores.amax(dim=1) if reduce == "max" else scores.sum(dim=1)


def pool_tokens(scores: Tensor, kernel: int, pool: Pool, absent: Tensor | None = None) -> Tensor:
    """Pool [..., T] along the tokens with stride 1 and the same length (the average counts the padding).

    Columns that are `absent` [..., T] must score 0; the tokens on both sides of them are neighbors.
    """
    if absent is not None:
        together = absent.byte().argsort(dim=-1, stable=True).expand_as(scores)
        pooled = pool_tokens(scores.gather(-1, together), kernel, pool)
        return torch.empty_like(pooled).scatter_(-1, together, pooled)
    rows = scores.reshape(-1, scores.shape[-1])
    pooling = F.max_pool1d if pool == "max" else F.avg_pool1d
    return pooling(rows, kernel, stride=1, padding=kernel // 2).view(scores.shape)


def keep_window(scores: Tensor, window: int) -> Tensor:
    """[H, N - w] -> [H, N]: append the window, which is always kept."""
    return F.pad(scores, (0, window), value=torch.inf)


def _rows_at_once(view: LayerView) -> int:
    of_a_row = view.queries.shape[0] * view.keys.shape[1]
    return min(max(numbers_at_once(view.keys.device, _BLOCK) // of_a_row, _FEWEST_ROWS), _MOST_ROWS)


def _attention(view: LayerView, queries: Tensor, first: int) -> Tensor:
    """[Hq, r, D] queries at positions first … first + r - 1 -> [H, G, r, first + r] probabilities."""
    rows = queries.shape[1]
    logits = _capped_logits(view, queries, first + rows)
    future = torch.ones(rows, rows, dtype=torch.bool, device=logits.device).triu_(1)
    logits[..., first:].masked_fill_(future, -torch.inf)
    return _probabilities(view, logits)


def _capped_logits(view: LayerView, queries: Tensor, visible: int) -> Tensor:
    """[Hq, r, D] -> [H, G, r, visible] logits over the first `visible` keys; -inf where a head has none."""
    heads, rows = view.keys.shape[0], queries.shape[1]
    folded = queries.float().reshape(heads, -1, queries.shape[-1]) * view.scaling
    logits = _logits(folded, view.keys[:, :visible])
    if view.softcap is not None:
        logits.div_(view.softcap).tanh_().mul_(view.softcap)
    if view.absent is not None:
        logits.masked_fill_(view.absent[:, None, :visible], -torch.inf)
    return logits.view(heads, -1, rows, visible)


def _probabilities(view: LayerView, logits: Tensor) -> Tensor:
    """[H, G, r, M] logits -> probabilities, with the model's sinks in the denominator."""
    attention = logits.softmax(dim=-1)
    if view.sinks is not None:
        # e^l / (Σ e^l + e^s) = softmax(l) · sigmoid(logsumexp(l) - s)
        sinks = view.sinks.float().view(logits.shape[0], -1, 1, 1)
        attention *= torch.sigmoid(logits.logsumexp(dim=-1, keepdim=True) - sinks)
    if view.absent is not None:  # nothing is paid to what is not there or not seen yet, even where nothing else is
        attention.masked_fill_(logits == -torch.inf, 0)
    return attention


def _logits(queries: Tensor, keys: Tensor) -> Tensor:
    """[H, R, D] fp32 x [H, M, D] -> [H, R, M] fp32; keys of another type are converted a chunk at a time."""
    if keys.dtype == torch.float32:
        return queries @ keys.transpose(1, 2)
    logits = queries.new_empty(queries.shape[0], queries.shape[1], keys.shape[1])
    step = tokens_at_once(keys, _CHUNK)
    for start in range(0, keys.shape[1], step):
        chunk = keys[:, start : start + step].float()
        logits[..., start : start + step] = queries @ chunk.transpose(1, 2)
    return logits
