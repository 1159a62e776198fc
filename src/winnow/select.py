"""From scores and slots per head to the positions that stay."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from winnow.doubts import doubted
from winnow.errors import ModelError
from winnow.transfers import sent


class Selection(NamedTuple):
    """The part of one layer of one sequence that stays."""

    positions: Tensor
    """[S] int64, head after head, ascending within each head; on the device of the scores."""
    offsets: Tensor
    """[H + 1] int64 on the CPU: head h holds positions[offsets[h] : offsets[h + 1]]."""

    def heads(self, device: torch.device) -> Tensor:
        """[S] int64 on a device: the head of every position. Their number is known, so no GPU is waited for."""
        counts = sent(self.offsets.diff(), device)
        return torch.arange(len(counts), device=device).repeat_interleave(counts, output_size=len(self.positions))


def select(scores: Tensor, slots: Tensor, layer: int = 0, scorer: str = "") -> Selection:
    """Keep the `slots[h]` best tokens of every head h; equal scores go to the lower token index.

    scores [H, N] fp32; slots [H] int64 on the CPU, each in [0, N]; `layer` and `scorer` are only
    named in errors. Raises ModelError where a score is NaN.
    """
    check_scores(scores, layer, scorer)
    return _selection(best_tokens(scores, slots), slots)


def everything(keys: Tensor, absent: Tensor | None = None) -> Selection:
    """All tokens of every head of keys [H, N, D], but those of columns that are `absent` [H, N]."""
    heads, length, _ = keys.shape
    if absent is not None:
        return _selection(~absent, (~absent).sum(dim=1).cpu())
    positions = torch.arange(length, device=keys.device).repeat(heads)
    return Selection(positions, torch.arange(heads + 1, device="cpu") * length)


def _selection(keep: Tensor, slots: Tensor) -> Selection:
    """From columns to keep [H, N] bool, slots[h] of head h (int64 on the CPU)."""
    offsets = torch.zeros(len(slots) + 1, dtype=torch.int64, device="cpu")
    torch.cumsum(slots, 0, out=offsets[1:])
    return Selection(columns(keep, int(offsets[-1])), offsets)


def columns(keep: Tensor, count: int) -> Tensor:
    """[count] int64: the columns in which [H, N] bool is true so many times, head after head."""
    if keep.device.type == "cpu":
        return keep.nonzero()[:, 1].contiguous()
    # Their number is known, so no GPU is waited for: each goes to its place, the others to one more at the end.
    places = keep.flatten().cumsum(0).sub_(1).masked_fill_(~keep.flatten(), count)
    numbers = torch.arange(keep.shape[1], device=keep.device).expand(keep.shape).flatten()
    return numbers.new_zeros(count + 1).scatter_(0, places, numbers)[:count]


def ranks(scores: Tensor, selection: Selection) -> Tensor:
    """[S] int64: the place of every position in the order of its head, from 0: by scores [H, N], then by index.

    The first k of a head are those that `best_tokens` would keep of them.
    """
    heads = selection.heads(scores.device)
    # Two stable sorts of what lies head after head, ascending: by score, then by head.
    order = scores[heads, selection.positions].argsort(descending=True, stable=True)
    order = order[heads[order].argsort(stable=True)]
    begins = sent(selection.offsets[:-1], scores.device)[heads]
    places = torch.arange(len(order), device=scores.device)
    return torch.empty_like(order).scatter_(0, order, places) - begins


def check_scores(scores: Tensor, layer: int, scorer: str = "") -> None:
    """Raise ModelError, naming the layer and the scorer, where a score is NaN: nothing could be ordered by it."""
    source = f"the scorer {scorer}" if scorer else "the scorer"
    error = ModelError(
        f"The token scores of layer {layer} contain NaN, which came from the keys, the queries, or {source}. "
        "Check the prompt without compression; a model in float16 may need bfloat16 or float32."
    )
    doubted(scores.isnan().any(), error)


def kth_largest(scores: Tensor, rank: int) -> Tensor:
    """The `rank`-th largest of a vector, rank from 1, as a scalar tensor."""
    if scores.device.type == "cpu":
        return scores.kthvalue(len(scores) - rank + 1).values
    # kthvalue is refused on GPUs under torch.use_deterministic_algorithms
    return scores.topk(rank).values[-1]


def best_tokens(scores: Tensor, slots: Tensor) -> Tensor:
    """[H, N] bool: the slots[h] largest of each row, the lower index first among equals; slots on the CPU."""
    there = sent(slots, scores.device)[:, None]
    threshold = _thresholds(scores, slots) if scores.device.type == "cpu" else _thresholds_there(scores, there)
    keep = scores > threshold
    tied = scores == threshold
    wanted = there - keep.sum(dim=1, keepdim=True)
    # Whether some are too many is known at once on the CPU; a GPU would be waited for.
    if scores.device.type != "cpu" or bool((tied.sum(dim=1, keepdim=True) != wanted).any()):
        tied &= tied.cumsum(dim=1) <= wanted
    return keep | tied


def _thresholds_there(scores: Tensor, slots: Tensor) -> Tensor:
    """The same as `_thresholds` on a GPU, slots [H, 1] beside them: one sort of all heads is few launches."""
    ordered = scores.sort(dim=1, descending=True).values
    return ordered.gather(1, (slots - 1).clamp(min=0)).masked_fill_(slots == 0, torch.inf)


def _thresholds(scores: Tensor, slots: Tensor) -> Tensor:
    """[H, 1]: the slots[h]-th largest score of each head; +inf for heads without slots."""
    thresholds = scores.new_full((scores.shape[0], 1), torch.inf)
    for head, count in enumerate(slots.tolist()):
        if count:
            thresholds[head] = kth_largest(scores[head], count)
    return thresholds
