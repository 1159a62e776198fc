"""Relations between facts and tensors of a layer that comes from a file; each raises ValueError where one is broken.

Types and ranges are the facts' own (`cache/facts.py`), memory and content of blocks their format's
(`kernels/formats/schema.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from winnow.cache.facts import FullFacts, PrefixFacts, SlidingFacts
from winnow.kernels.formats import Block, parts_of
from winnow.kernels.formats.schema import Demand, Rule, check, within
from winnow.models.dtypes import written_dtype


def check_full(facts: FullFacts, rows: int, tokens: int, dtype: torch.dtype) -> None:
    """A layer of full attention has all rows and tokens of the context, and every row an existing prefix or none."""
    _check_tokens(facts.seen, tokens)
    if len(facts.rows) != rows:
        raise ValueError(f"the layer has {len(facts.rows)} rows and the context {rows}")
    if any(place is not None and place >= len(facts.prefixes) for place in facts.rows):
        raise ValueError(f"a row has a prefix beyond the {len(facts.prefixes)} there are")
    if facts.dtype != written_dtype(dtype):
        raise ValueError(f"the layer is of {facts.dtype!r} and the model of {written_dtype(dtype)}")
    if any(described.length > tokens for described in facts.prefixes):
        raise ValueError(f"a prefix is longer than the {tokens} tokens of the context")


def check_prefix(layer: FullFacts, described: PrefixFacts, block: Block, positions: Tensor) -> None:
    """A block has the heads and channels of its layer, and every slot a token, in order."""
    expected = (layer.heads, layer.key_dim, layer.value_dim, layer.dtype)
    for part in parts_of(block):
        found = (len(part.starts), part.key_dim, part.value_dim, written_dtype(part.dtype))
        if found != expected:
            raise ValueError(f"a prefix has (heads, D, Dv, dtype) = {found} and its layer {expected}")
    bounds = block.offsets[1:-1]
    ascending = Demand("must ascend in every head", lambda numbers: _ascends(numbers, bounds))
    rule = Rule(
        "positions",
        positions,
        torch.int32,
        (int(block.offsets[-1]),),
        torch.device("cpu"),
        (within(0, described.length), ascending),
    )
    check([rule])


def _ascends(positions: Tensor, bounds: Tensor) -> bool:
    """True if positions ascend but for where, at `bounds`, another head begins."""
    rises = positions.diff() > 0
    inside = bounds[(bounds > 0) & (bounds < len(positions))]
    rises[inside - 1] = True
    return bool(rises.all())


def check_sliding(
    facts: SlidingFacts, parts: Sequence[Tensor | None], size: tuple[int, int], tokens: int, dtype: torch.dtype
) -> None:
    """A sliding layer has keys and values [R, H, W, D] of its last tokens; size: R and W."""
    _check_tokens(facts.seen, tokens)
    for part in parts:
        if part is None or part.ndim != 4 or part.dtype != dtype or not part.is_contiguous():
            raise ValueError(f"a sliding layer must have keys and values [R, H, W, D] of {dtype}")
        if (part.shape[0], part.shape[2]) != size:
            raise ValueError(f"keys and values of a sliding layer must have {size[0]} rows and {size[1]} tokens")


def check_states(states: Mapping[str, Tensor], known: Iterable[str], rows: int) -> None:
    """A linear layer has states of floating-point numbers, a row for each of the context's."""
    unknown = sorted(states.keys() - set(known))
    if unknown:
        raise ValueError(f"a linear layer has unknown state {unknown[0][:40]!r}")
    for state in states.values():
        if state.ndim < 2 or state.shape[0] != rows or not state.is_floating_point():
            raise ValueError(f"states of a linear layer must be floating-point numbers [{rows}, ...]")


def _check_tokens(seen: int, tokens: int) -> None:
    if seen != tokens:
        raise ValueError(f"the layer has seen {seen} tokens and the context has {tokens}")
