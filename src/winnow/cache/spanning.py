"""Prompts whose layers get their slots together, while no more than these slots and one layer's prompt are alive.

An allocator that spans layers (`allocate/spanning.py`) knows the slots of a layer when it has seen all. Until then a
layer holds the slots that it would have if no layer came any more, dense. Each layer that comes takes some of them away
from those before it, which let go of them at once. As the best of all layers are among the best of the first few, what
is left after the last layer is what all scores together would have kept, and is packed then.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from winnow.allocate import Allocation, Claim, SlotPlan, SpanningAllocator, shared_within, spanning_of
from winnow.budget import readable_bytes
from winnow.cache.prefix import Prefix
from winnow.composition.contract import check_scored, check_slots
from winnow.composition.method import Method
from winnow.errors import BudgetError
from winnow.kernels.formats import Block, DenseBlock
from winnow.score import Ranking
from winnow.score.attention_sums import window_attention
from winnow.score.base import refined
from winnow.select import Selection, columns, ranks, select
from winnow.store import Dense
from winnow.store.base import POSITION_BYTES, gathered
from winnow.transfers import sent
from winnow.view import LayerView, last_queries

_AIM = 0.998
"""Share of a budget in bytes that fewer slots are to take, where the expected ones took too much."""


class HeldLayer(NamedTuple):
    """A layer of a row whose slots are not final: at least those that it will have, dense."""

    view: LayerView
    """The prompt's, with the queries that the store asks for, and no keys and values."""
    ranking: Ranking
    """[H, N] of the whole prompt: heads compete by all of it."""
    claim: Claim
    length: int
    """N"""
    keys: Tensor
    """[S, D]"""
    values: Tensor
    """[S, Dv]"""
    selection: Selection
    ranks: Tensor | None
    """[S] int64: how many slots of its head are better than a slot; None where a scorer refines scores every time."""
    whole: LayerView | None
    """All that there was, where somebody wants to see what became of it."""

    @property
    def counts(self) -> Tensor:
        """[H] int64 on the CPU: slots of every head."""
        return self.selection.offsets.diff()

    @property
    def heads(self) -> Tensor:
        """[S] int64: the head of every slot."""
        return self.selection.heads(self.selection.positions.device)

    def kept(self) -> Tensor:
        """[H, N] bool"""
        mask = torch.zeros_like(self.ranking.scores, dtype=torch.bool)
        mask[self.heads, self.selection.positions] = True
        return mask

    def spread(self) -> LayerView:
        """The view of the prompt, where all slots but those that are held are absent."""
        mask, heads, positions = self.kept(), self.heads, self.selection.positions
        keys, values = (part.new_zeros(*mask.shape, part.shape[-1]) for part in (self.keys, self.values))
        keys[heads, positions], values[heads, positions] = self.keys, self.values
        return self.view._replace(keys=keys, values=values, absent=~mask)


class Finished(NamedTuple):
    """A layer whose slots are final."""

    whole: LayerView | None
    """See `HeldLayer.whole`."""
    prefix: Prefix


class LayersTogether:
    """The layers of a prompt that wait for its last one, for every row of a batch.

    Layers come in their order, each for all rows. The first one of a row starts afresh. A layer that failed or was
    interrupted may come again: what it took from earlier ones, it would take again.
    """

    def __init__(self) -> None:
        self._rows: dict[int, list[HeldLayer]] = {}
        self._places: dict[int, list[Prefix | None]] = {}  # layer -> of every row, once they are known

    def add(
        self,
        row: int,
        method: Method,
        view: LayerView,
        ranking: Ranking,
        plan: SlotPlan,
        whole: LayerView | None = None,
    ) -> None:
        """A layer of a row, with its prompt's queries, keys and values; earlier ones give up slots for it.

        whole: what an observer wants to see, dense until the end.
        Raises ModelError where a score is NaN.
        """
        check_scored(ranking.scores, view, method.scorer)
        spanning = _spanning(method)
        held = self._rows.setdefault(row, [])
        del held[view.layer :]
        attention = window_attention(view, spanning.attention_rows) if spanning.attention_rows else None
        claim = spanning.claim(ranking.scores, attention, plan)
        totals = spanning.totals([*(each.claim for each in held), claim], plan)
        allocation = Allocation(plan, (*totals, *(0 for _ in plan.heads[len(totals) :])))
        # Heads that another allocator divides a layer among may be rounded otherwise in the end.
        spare = int(len(totals) < len(plan.heads) and method.allocator is not spanning)
        for layer, each in enumerate(held):
            slots = _slots(each.ranking.scores, method, allocation, layer) + spare
            slots = torch.minimum(slots, each.counts) if spare else shared_within(slots, each.counts, plan.guaranteed)
            # One by one and in place: no more than one layer is there twice.
            held[layer] = _narrowed(each, method, slots)._replace(claim=each.claim.first(totals[layer]))
        slots = (_slots(ranking.scores, method, allocation, view.layer) + spare).clamp(max=view.keys.shape[1])
        held.append(_held(method, view, ranking, claim.first(totals[-1]), slots)._replace(whole=whole))

    def finish(self, row: int, method: Method, plan: SlotPlan) -> list[Finished]:
        """All layers of a row, the last of which was just added.

        Raises BudgetError where a budget in bytes cannot hold what is always kept.
        """
        held = self._rows[row]
        if method.budget.unit == "bytes":
            held = _fitting(held, method, plan)
        return [Finished(each.whole, _packed(each, method)) for each in held]

    def expect(self, layer: int, prefixes: list[Prefix | None], last: bool) -> None:
        """A layer was compressed for all rows; its prefixes are put into this list once they are known.

        last: it is the last layer, and they are: nothing is held any more.
        """
        if last:
            self._rows, self._places = {}, {}
        else:
            self._places[layer] = prefixes

    def deliver(self, row: int, prefixes: list[Prefix]) -> None:
        """Puts prefixes of a row where their layers look for them; that of the last layer is its own to take."""
        for layer, prefix in enumerate(prefixes[:-1]):
            self._places[layer][row] = prefix

    @property
    def waiting(self) -> bool:
        """True between the first layer of a prompt and the end of its last."""
        return bool(self._rows)

    def nbytes(self) -> int:
        """Bytes of the keys and values that are held for now."""
        return sum(each.keys.nbytes + each.values.nbytes for row in self._rows.values() for each in row)


def _spanning(method: Method) -> SpanningAllocator:
    found = spanning_of(method.allocator)
    assert found is not None
    return found


def _held(method: Method, view: LayerView, ranking: Ranking, claim: Claim, slots: Tensor) -> HeldLayer:
    """The slots [H] of a layer right after its own prefill."""
    heads, length, dim = view.keys.shape
    bare = view._replace(
        queries=last_queries(view.queries, method.store.queries_needed(length)).clone(),
        keys=view.keys.new_empty(heads, 0, dim),
        values=view.values.new_empty(heads, 0, view.values.shape[-1]),
    )
    scores = refined(method.scorer, ranking, slots, view)
    selection = select(scores, slots, view.layer)
    ranking = ranking if method.scorer.refines else Ranking(ranking.scores)
    order = None if method.scorer.refines else ranks(scores, selection)
    return HeldLayer(bare, ranking, claim, length, *gathered(view, selection), selection, order, None)


def _slots(scores: Tensor, method: Method, allocation: Allocation, layer: int) -> Tensor:
    """Slots [H] of a layer with scores [H, N]."""
    heads, length = scores.shape
    if allocation.totals[layer] == heads * length:
        return torch.full((heads,), length, device="cpu")
    slots = method.allocator.head_slots(scores, allocation, layer)
    check_slots(slots, scores, allocation, layer, method.allocator)
    return slots


def _narrowed(held: HeldLayer, method: Method, slots: Tensor) -> HeldLayer:
    """A layer with the best `slots` [H] of those that it holds."""
    if torch.equal(slots, held.counts):
        return held
    order = held.ranks
    if order is None:
        order = ranks(refined(method.scorer, held.ranking, slots, held.spread()), held.selection)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64, device="cpu"), slots.cumsum(0)])
    keep = columns((order < sent(slots, order.device)[held.heads])[None], int(offsets[-1]))
    return held._replace(
        keys=held.keys[keep],
        values=held.values[keep],
        selection=Selection(held.selection.positions[keep], offsets),
        ranks=None if held.ranks is None else held.ranks[keep],
    )


def _packed(held: HeldLayer, method: Method) -> Prefix:
    """The prefix of a layer that holds its slots and nothing else."""
    selection = held.selection
    if isinstance(method.store, Dense):
        block: Block = DenseBlock(held.keys, held.values, selection.offsets)
    else:
        block = method.store.pack(held.spread(), selection, min(method.scorer.window, held.length))
    return Prefix(block, selection.positions.to(torch.int32), held.length, held.length)


def _bytes(held: HeldLayer, method: Method) -> float:
    """Exact bytes of the prefix of a layer that holds its slots and nothing else."""
    if isinstance(method.store, Dense):
        slots = len(held.selection.positions)
        return held.keys.nbytes + held.values.nbytes + held.selection.offsets.nbytes + POSITION_BYTES * slots
    return method.store.bytes(held.spread(), held.selection, min(method.scorer.window, held.length))


def _fitting(held: list[HeldLayer], method: Method, plan: SlotPlan) -> list[HeldLayer]:
    """The layers with as many slots fewer as it takes for all of them to fit into a budget in bytes.

    Raises BudgetError where what is always kept does not fit.
    """
    claims, limit = [each.claim for each in held], method.budget.amount
    least = sum(plan.heads) * max(plan.guaranteed, 1)
    while (size := sum(_bytes(each, method) for each in held)) > limit:
        if plan.slots <= least:
            raise BudgetError(
                f"A budget of {method.budget} cannot hold what {method.name} always keeps: use at least "
                f"{math.ceil(size)} bytes ({readable_bytes(math.ceil(size))}), or a smaller window."
            )
        plan = plan._replace(slots=max(least, min(plan.slots - 1, int(plan.slots * _AIM * limit / size))))
        allocation = Allocation(plan, tuple(_spanning(method).totals(claims, plan)))
        slots = [_slots(each.ranking.scores, method, allocation, layer) for layer, each in enumerate(held)]
        held = [
            _narrowed(each, method, shared_within(wanted, each.counts, plan.guaranteed))
            for each, wanted in zip(held, slots, strict=True)
        ]
    return held
