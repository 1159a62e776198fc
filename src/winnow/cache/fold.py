"""Folding: the dense tail of a long generation becomes part of the compressed prefix, and tokens are evicted again.

What a head still holds (its slots, recovered from the block, then its tail) are the candidates of the next prefix. They
are scored, divided, selected and packed by the same method as the prompt was. Prefixes are immutable, so a fold makes a
new one, and rows that share the old one keep it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from winnow.allocate import Allocation
from winnow.allocate.rounding import full_tensor, round_exactly
from winnow.cache.prefix import Prefix, compress_layer
from winnow.composition.method import Method
from winnow.errors import MethodError
from winnow.kernels.formats import Block
from winnow.score.base import Ranking
from winnow.select import Selection, check_scores, select
from winnow.view import Extra, LayerView

FOLDABLE = Extra.OUTPUT
"""What a scorer may ask for: the others are known of whole prompts only."""
_LONG = 1 << 40


class Candidates(NamedTuple):
    """What one row of a layer holds, head by head, in ascending order of position."""

    keys: Tensor
    """[H, N, D], zero where absent."""
    values: Tensor
    """[H, N, Dv], zero where absent."""
    positions: Tensor
    """[H, N] int64, -1 where absent. Absent columns lie between older slots and the window."""
    carried: Tensor | None = None
    """[H, M] fp32, what the columns of the prefix scored so far, where the scorer accumulates."""

    @property
    def counts(self) -> Tensor:
        """[H] int64 on the CPU: candidates of every head."""
        return (self.positions >= 0).sum(dim=1).cpu()


class Chosen(NamedTuple):
    """What stays, and by which scores."""

    selection: Selection
    carried: Tensor | None
    """[H, N] fp32 of all columns, for scorers that accumulate."""


def queries_to_remember(method: Method, every: int) -> int:
    """How many of the last queries a fold after `every` tokens needs."""
    if method.scorer.accumulates:
        return max(every, method.store.queries_needed(_LONG))
    return method.queries_needed(_LONG)


def check_foldable(method: Method, every: int) -> None:
    """Raises MethodError where a method cannot compress again during generation, every `every` tokens."""
    scorer = method.scorer
    if every < 1:
        raise MethodError(f"fold_every is {every}; give the number of new tokens after which they are folded, or None.")
    if method.full:
        raise MethodError(
            "'full' keeps every token, so nothing can be folded; leave fold_every out, or give a method with a budget."
        )
    if not method.allocator.takes_budget:
        raise MethodError(
            f"{method} keeps what a rule of its own says, which grows with the text; leave fold_every out, or give a "
            "method with a budget."
        )
    if not method.store.idempotent:
        raise MethodError(
            f"{method} packs slots in a form that changes when they are packed again, which folding does; leave "
            "fold_every out, or store them dense, with bits, think or spark(recovery=degenerate)."
        )
    if scorer.extras & ~FOLDABLE:
        raise MethodError(
            f"{method} scores tokens by what is known of a whole prompt only (the layers that kept them, the rotation "
            "of all queries); leave fold_every out, or use snapkv, adakv, h2o, tova, streamingllm, knorm or keydiff."
        )
    if scorer.accumulates:
        return
    votes = scorer.queries_needed(_LONG)
    if votes != scorer.queries_needed(2 * _LONG):
        raise MethodError(
            f"{method} needs the queries of all tokens, which nobody keeps during a long generation; leave fold_every "
            "out, or use a method whose last queries vote (snapkv, adakv, tova) or that accumulates (h2o)."
        )
    if votes > max(scorer.window, every):
        raise MethodError(
            f"{method} lets the last {votes} tokens vote and keeps only {scorer.window} of them for sure; give "
            f"fold_every={votes} or more, so that the others are still there."
        )


def allocated_length(method: Method, prompt: int, seen: int) -> int:
    """For how many tokens slots are given out when a row of `prompt` tokens has `seen` so far.

    A number of tokens or bytes is a limit of its own: short prompts grow until it is reached. A share is one of the
    prompt: of all tokens so far it would grow without end.
    """
    if method.budget.unit != "percent":
        return seen
    return min(seen, max(prompt, method.scorer.guaranteed, 1))


def candidates(prefix: Prefix | None, keys: Tensor, values: Tensor, window: int) -> Candidates:
    """The slots of a prefix and, behind them, tail keys [H, T, D] and values [H, T, Dv].

    window: so many slots at the end of every head are the same tokens in all of them.
    """
    heads, new, _ = keys.shape
    if prefix is None:
        return Candidates(keys, values, torch.arange(new, device=keys.device).repeat(heads, 1))
    slots = _columns(prefix.block, window).to(keys.device)
    absent = slots < 0
    slots = slots.clamp(min=0)
    positions = prefix.positions.to(keys.device, torch.int64)[slots].masked_fill(absent, -1)
    later = torch.arange(prefix.length, prefix.length + new, device=keys.device).expand(heads, -1)
    old_keys, old_values = (
        part.to(keys.dtype).masked_fill(absent[..., None], 0) for part in prefix.block.recover(slots)
    )
    return Candidates(
        torch.cat([old_keys, keys], dim=1),
        torch.cat([old_values, values], dim=1),
        torch.cat([positions, later], dim=1),
        None if prefix.carried is None else prefix.carried[slots].masked_fill(absent, 0),
    )


def fold(method: Method, view: LayerView, held: Candidates, allocation: Allocation, old: Prefix | None) -> Prefix:
    """The next prefix of a row, from a view of its candidates."""
    selection, carried = select_present(method, view, held.counts, allocation)
    window = min(method.scorer.window, view.keys.shape[1])
    block = method.store.pack(view, selection, window, like=None if old is None else old.block)
    heads = torch.arange(len(held.positions)).repeat_interleave(selection.offsets.diff()).to(held.positions.device)
    return Prefix(
        block,
        held.positions[heads, selection.positions].to(torch.int32),
        int(held.positions[0, -1]) + 1,
        prompt_of(old),
        None if carried is None else carried[heads, selection.positions],
    )


def compress_to_fold(method: Method, view: LayerView, allocation: Allocation) -> Prefix:
    """The first prefix of a row, from a view of its prompt, with what a scorer that accumulates carries on."""
    if not method.scorer.accumulates:
        return compress_layer(method, view, allocation)
    everything = candidates(None, view.keys, view.values, method.scorer.window)
    return replace(fold(method, view, everything, allocation, None), prompt=None)


def prompt_of(prefix: Prefix | None) -> int:
    """Tokens of the prompt that a prefix began with; none where a row was nothing but padding."""
    if prefix is None:
        return 0
    return prefix.length if prefix.prompt is None else prefix.prompt


@torch.no_grad()
def select_present(method: Method, view: LayerView, counts: Tensor, allocation: Allocation) -> Chosen:
    """The columns that stay of a layer whose heads hold `counts` [H] candidates; absent ones never do.

    As many as the layer was given, or all there are.
    """
    enough = allocation.totals[view.layer] >= int(counts.sum()) and not method.tries_sizes(allocation)
    if enough and not method.scorer.accumulates:
        return Chosen(_all_present(view, counts), None)
    ranking = method.scorer.rank(view)
    check_scores(ranking.scores, view.layer)
    carried = ranking.basis if method.scorer.accumulates else None
    ranking = ranking._replace(scores=_without(ranking.scores, view.absent))

    def chosen(tried: Allocation) -> Selection:
        return _best_present(method, ranking, view, counts, tried)

    return Chosen(method.fitted(chosen, view, allocation, int(counts.sum())), carried)


def _best_present(
    method: Method, ranking: Ranking, view: LayerView, counts: Tensor, allocation: Allocation
) -> Selection:
    """The best columns of an allocation, where no head gets more than it has."""
    there = int(counts.sum())
    total = min(allocation.totals[view.layer], there)
    if total == there:
        return _all_present(view, counts)
    totals = tuple(total if layer == view.layer else each for layer, each in enumerate(allocation.totals))
    slots = method.allocator.head_slots(ranking.scores, allocation._replace(totals=totals), view.layer)
    slots = _within(slots, counts, allocation.plan.guaranteed)
    return select(_without(method.scorer.refine(ranking, slots, view), view.absent), slots, view.layer)


def _all_present(view: LayerView, counts: Tensor) -> Selection:
    equal = view.keys.new_zeros(view.keys.shape[:2], dtype=torch.float32)
    return select(_without(equal, view.absent), counts, view.layer)


def _columns(block: Block, window: int) -> Tensor:
    """[H, N] the slot of every column, -1 where absent; N is what the largest head holds."""
    starts, stops = block.starts[:, None], block.stops[:, None]
    counts = stops - starts
    widest, recent = int(counts.max()), min(window, int(counts.min()))
    column = torch.arange(widest)
    older = torch.where(column < counts - recent, starts + column, -1)
    return torch.where(column >= widest - recent, stops - widest + column, older)


def _without(scores: Tensor, absent: Tensor | None) -> Tensor:
    return scores if absent is None else scores.masked_fill(absent, -torch.inf)


def _within(slots: Tensor, counts: Tensor, guaranteed: int) -> Tensor:
    """Slots [H] where no head gets more than it has candidates; the others share what that frees."""
    if not bool((slots > counts).any()):
        return slots
    total = min(int(slots.sum()), int(counts.sum()))
    low = torch.minimum(full_tensor(len(counts), guaranteed), counts)
    return round_exactly(slots, total, low, counts)
