"""From scores and slots per head to the positions that stay."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from winnow.errors import ModelError


class Selection(NamedTuple):
    """The part of one layer of one sequence that stays."""

    positions: Tensor
    """[S] int64, head after head, ascending within each head; on the device of the scores."""
    offsets: Tensor
    """[H + 1] int64 on the CPU: head h holds positions[offsets[h] : offsets[h + 1]]."""

    def heads(self, device: torch.device) -> Tensor:
        """[S] int64 on a device: the head of every position. Their number is known, so no GPU is waited for."""
        counts = self.offsets.diff().to(device)
        return torch.arange(len(counts), device=device).repeat_interleave(counts, output_size=len(self.positions))


def select(scores: Tensor, slots: Tensor, layer: int = 0) -> Selection:
    """Keep the `slots[h]` best tokens of every head h; equal scores go to the lower token index.

    scores [H, N] fp32; slots [H] int64 on the CPU, each in [0, N]; `layer` only names the layer in errors.
    Raises ModelError where a score is NaN.
    """
    check_scores(scores, layer)
    return _selection(best_tokens(scores, slots), slots)


def everything(keys: Tensor, absent: Tensor | None = None) -> Selection:
    """All tokens of every head of keys [H, N, D], but those of columns that are `absent` [H, N]."""
    heads, length, _ = keys.shape
    if absent is not None:
        return _selection(~absent, (~absent).sum(dim=1).cpu())
    positions = torch.arange(length, device=keys.device).repeat(heads)
    return Selection(positions, torch.arange(heads + 1) * length)


def _selection(keep: Tensor, slots: Tensor) -> Selection:
    """From columns to keep [H, N] bool, slots[h] of head h (int64 on the CPU)."""
    offsets = torch.zeros(len(slots) + 1, dtype=torch.int64)
    torch.cumsum(slots, 0, out=offsets[1:])
    return Selection(keep.nonzero()[:, 1].contiguous(), offsets)


def check_scores(scores: Tensor, layer: int) -> None:
    """Raise ModelError, naming the layer, where a score is NaN: nothing could be ordered by it."""
    if bool(scores.isnan().any()):
        raise ModelError(
            f"The token scores of layer {layer} contain NaN, so its keys or queries do. "
            "Check the prompt without compression; a model in float16 may need bfloat16 or float32."
        )


def kth_largest(scores: Tensor, rank: int) -> Tensor:
    """The `rank`-th largest of a vector, rank from 1, as a scalar tensor."""
    if scores.device.type == "cpu":
        return scores.kthvalue(len(scores) - rank + 1).values
    # kthvalue is refused on GPUs under torch.use_deterministic_algorithms
    return scores.topk(rank).values[-1]


def best_tokens(scores: Tensor, slots: Tensor) -> Tensor:
    """[H, N] bool: the slots[h] largest of each row, the lower index first among equals; slots on the CPU."""
    threshold = _thresholds(scores, slots)
    keep = scores > threshold
    tied = scores == threshold
    wanted = slots.to(scores.device) - keep.sum(dim=1)
    if bool((tied.sum(dim=1) != wanted).any()):
        tied &= tied.cumsum(dim=1) <= wanted[:, None]
    return keep | tied


def _thresholds(scores: Tensor, slots: Tensor) -> Tensor:
    """[H, 1]: the slots[h]-th largest score of each head; +inf for heads without slots."""
    if scores.device.type != "cpu":
        # One sort of all heads takes fewer launches than a search in each.
        wanted = slots.to(scores.device)[:, None]
        ordered = scores.sort(dim=1, descending=True).values
        return ordered.gather(1, (wanted - 1).clamp(min=0)).masked_fill_(wanted == 0, torch.inf)
    thresholds = scores.new_full((scores.shape[0], 1), torch.inf)
    for head, count in enumerate(slots.tolist()):
        if count:
            thresholds[head] = kth_largest(scores[head], count)
    return thresholds
