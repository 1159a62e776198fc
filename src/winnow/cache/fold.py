"""Folding: the dense tail of a long generation becomes part of the compressed prefix, and tokens are evicted again.

Where nothing is evicted ("full" with packed slots) what the tail held is packed, and all stays.

What a head still holds (its slots, recovered from the block, then its tail) are the candidates of the next prefix. They
are scored, divided, selected and packed by the same method as the prompt was. Prefixes are immutable, so a fold makes a
new one, and rows that share the old one keep it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from winnow.allocate import spanning_of
from winnow.cache.prefix import Prefix
from winnow.composition.method import Method
from winnow.errors import MethodError
from winnow.kernels.formats import Block, DenseBlock, parts_of
from winnow.kernels.formats.parts import slots_in_parts
from winnow.view import Extra

FOLDABLE = Extra.COVERAGE | Extra.ROTATION | Extra.OUTPUT_PROJECTION
"""Extras that a scorer may ask for: others are known of whole prompts only."""
_LONG = 1 << 40


class Candidates(NamedTuple):
    """Slots and tail of one row of a layer, head by head, in ascending order of position."""

    keys: Tensor
    """[H, N, D], zero where absent."""
    values: Tensor
    """[H, N, Dv], zero where absent."""
    positions: Tensor
    """[H, N] int64, -1 where absent. Absent columns lie between older slots and the window."""
    slots: Tensor
    """[H, M] int64, the slots of the prefix that the first columns are, -1 where absent; M is 0 without one."""
    carried: Tensor | None = None
    """[H, M] fp32, what the columns of the prefix scored so far, where the scorer accumulates."""


def queries_to_remember(method: Method, every: int) -> int:
    """Last queries that a fold after `every` tokens needs."""
    if method.scorer.accumulates:
        return max(every, method.store.queries_needed(_LONG))
    return method.queries_needed(_LONG)


def check_foldable(method: Method, every: int | None, turns: int | None = None) -> None:
    """Raises MethodError where a method cannot compress again what comes after the prompt.

    every, turns: as `fold_every` and `fold_turns` of a cache, of which one is given at least.
    """
    scorer = method.scorer
    given = [(name, count) for name, count in (("fold_every", every), ("fold_turns", turns)) if count is not None]
    options = " and ".join(name for name, _ in given)
    for name, count in given:
        if count < 1:
            raise MethodError(f"{name} is {count}; give the number of new tokens after which they are folded, or None.")
    if method.uncompressed:
        raise MethodError(
            "'full' keeps every token, so nothing can be folded unless its slots are packed, as in 'full+bits(4)'; "
            f"leave {options} out, pack them, or give a method with a budget."
        )
    if method.full and method.store.appendable:
        return
    if not method.allocator.takes_budget:
        raise MethodError(
            f"{method} decides by a rule of its own how much it keeps, which grows with the text; leave {options} out, "
            "or give a method with a budget."
        )
    if spanning_of(method.allocator) is not None:
        raise MethodError(
            f"{method} gives a layer its slots when all layers are known, and tails are folded layer by layer; leave "
            f"{options} out, or let every layer have its own slots (adakv, pyramidkv, headkv)."
        )
    if not method.store.separable:
        raise MethodError(
            f"{method} writes slots in groups, which eviction would break up; leave {options} out, store them "
            "dense, with bits, think or spark, or evict nothing ('full+kivi(4)')."
        )
    if scorer.extras & ~FOLDABLE:
        raise MethodError(
            f"{method} scores tokens by what is known of a whole prompt only; leave {options} out, or use snapkv, "
            "adakv, rkv, h2o, tova, streamingllm, knorm or keydiff."
        )
    if scorer.accumulates:
        _check_bounded(method, every)
        return
    votes = scorer.queries_needed(_LONG)
    if scorer.needs_all_queries:
        raise MethodError(
            f"{method} needs the queries of all tokens, which are not kept during a long generation; leave {options} "
            "out, or use a method whose last queries vote (snapkv, adakv, tova) or that accumulates (h2o)."
        )
    if votes > max(scorer.window, min(count for _, count in given)):
        raise MethodError(
            f"{method} lets the last {votes} tokens vote but always keeps only {scorer.window} of them; give "
            f"{' and '.join(f'{name}={votes}' for name, _ in given)} or more, so that the others are still dense."
        )


def _check_bounded(method: Method, every: int | None) -> None:
    if every is None:
        raise MethodError(
            f"{method} counts the queries of all tokens, so the queries of tokens that are not folded yet are kept; "
            "give fold_every as well as fold_turns, so that their number stays limited."
        )


def allocated_length(method: Method, prompt: int, seen: int) -> int:
    """The tokens for which slots are given out when a row of `prompt` tokens has `seen` so far.

    A number of tokens or bytes is a limit of its own: short prompts grow until it is reached. A share is one of the
    prompt: of all tokens that are generated it would grow without end.
    """
    if method.budget.unit != "percent":
        return seen
    return min(seen, max(prompt, method.scorer.guaranteed, 1))


def candidates(prefix: Prefix | None, keys: Tensor, values: Tensor, window: int, recovers: bool = True) -> Candidates:
    """The slots of a prefix and, behind them, tail keys [H, T, D] and values [H, T, Dv].

    window: so many slots at the end of every head are the same tokens in all of them. recovers: False where nobody
    looks at packed slots, which are zero then.
    """
    heads, new, _ = keys.shape
    if prefix is None:
        positions = torch.arange(new, device=keys.device).repeat(heads, 1)
        return Candidates(keys, values, positions, positions[:, :0])
    columns = _columns(prefix.block, window)
    ragged = bool((columns < 0).any())  # asked where they are: a device would be waited for
    columns = columns.to(keys.device)
    absent = columns < 0
    slots = columns.clamp(min=0)
    positions = prefix.positions.to(keys.device, torch.int64)[slots].masked_fill(absent, -1)
    later = torch.arange(prefix.length, prefix.length + new, device=keys.device).expand(heads, -1)
    held = prefix.block.recover(slots) if recovers else _dense_slots(prefix.block, slots)
    old_keys, old_values = (part.to(keys.dtype) for part in held)
    if ragged:
        old_keys, old_values = (part.masked_fill(absent[..., None], 0) for part in (old_keys, old_values))
    return Candidates(
        torch.cat([old_keys, keys], dim=1),
        torch.cat([old_values, values], dim=1),
        torch.cat([positions, later], dim=1),
        columns,
        None if prefix.carried is None else prefix.carried[slots].masked_fill(absent, 0),
    )


def _dense_slots(block: Block, slots: Tensor) -> tuple[Tensor, Tensor]:
    """As `Block.recover`, in the model's dtype, but zero for slots that are packed.

    A cache that keeps every token would else be spread out whole for every few tokens that are folded into it.
    """
    first, flat = parts_of(block)[0], slots.flatten()
    keys = torch.zeros(*slots.shape, first.key_dim, dtype=first.dtype, device=first.device)
    values = torch.zeros(*slots.shape, first.value_dim, dtype=first.dtype, device=first.device)
    for part, mine, places in slots_in_parts(block, flat):
        if isinstance(part, DenseBlock):
            keys.flatten(0, 1)[mine], values.flatten(0, 1)[mine] = part.keys[places], part.values[places]
    return keys, values


def _columns(block: Block, window: int) -> Tensor:
    """[H, N] the slot of every column, -1 where absent; N is what the largest head holds."""
    starts, stops = block.starts[:, None], block.stops[:, None]
    counts = stops - starts
    widest, recent = int(counts.max()), min(window, int(counts.min()))
    column = torch.arange(widest, device="cpu")
    older = torch.where(column < counts - recent, starts + column, -1)
    return torch.where(column >= widest - recent, stops - widest + column, older)
