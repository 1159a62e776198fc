"""State of one layer of a compressed cache as facts and tensors, and back.

Full attention is ours. Sliding, chunked and linear layers are transformers' own; they are restored through what they
offer to models, not by their internals, as far as that goes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers.cache_utils import CacheLayerMixin, LinearAttentionLayer

from winnow.cache.facts import FullFacts, Kind, LayerFacts, LinearFacts, PrefixFacts, SlidingFacts
from winnow.cache.hybrid import CompressedHybridLayer
from winnow.cache.latent_layer import LatentLayer
from winnow.cache.layer import CompressedLayer
from winnow.cache.layer_check import check_full, check_prefix, check_sliding, check_states
from winnow.cache.prefix import Prefix
from winnow.cache.sliding_layer import CompactSlidingLayer
from winnow.cache.tail import Tail
from winnow.errors import ContextError
from winnow.kernels.formats.serialize import on_device, put_together, take_apart
from winnow.models.dtypes import written_dtype


class LayerState(NamedTuple):
    """A layer taken apart."""

    facts: LayerFacts
    tensors: dict[str, Tensor]


class Expected(NamedTuple):
    """Everything that the layers of a context agree in."""

    rows: int
    tokens: int
    """N, padding included."""
    dtype: torch.dtype
    device: torch.device


def state_of(layer: CacheLayerMixin) -> LayerState:
    """The state of a layer right after its prompt was compressed; tensors are not copied.

    Raises ContextError for a kind of layer that cannot be written, an empty one, and one with tokens after the prompt.
    """
    kind = layer_kind(layer)
    facts: dict[str, Any] = {}
    tensors: dict[str, Tensor] = {}
    for part in _PARTS[kind]:
        facts[part], found = _TAKE[part](layer)
        tensors |= found
    return LayerState(LayerFacts(kind, **facts), tensors)


def restore(layer: CacheLayerMixin, state: LayerState, expected: Expected) -> None:
    """Fills an empty layer with what `state_of` gave. Prefixes are views of its tensors; all else is copied.

    Raises:
        ContextError: the layer is of another kind.
        ValueError: facts or tensors that no layer has; nothing was read through them.
    """
    kind = layer_kind(layer)
    if kind != state.facts.kind:
        raise ContextError(
            f"the file holds a {state.facts.kind} layer, but this version of transformers has a {kind} one; "
            "compress the document again."
        )
    left = dict(state.tensors)
    for part in _PARTS[kind]:
        facts = getattr(state.facts, part)
        if facts is None:
            raise ValueError(f"the layer has no {part}")
        _PUT[part](layer, facts, left, expected)
    if left:
        raise ValueError(f"the layer has unknown {min(left)}")


def layer_kind(layer: CacheLayerMixin) -> Kind:
    """The name of a layer's kind in files. Raises ContextError for one that cannot be written."""
    for kind, made in _KINDS.items():
        if type(layer) is made:
            return kind
    if not _holds_tensors(layer):
        return "none"
    raise ContextError(
        f"contexts of models with {type(layer).__name__} layers cannot be written to a file: transformers holds their "
        f"state. Kinds of layers that can be written: {', '.join(_KINDS)}."
    )


_KINDS: dict[Kind, type[CacheLayerMixin]] = {
    "full": CompressedLayer,
    "latent": LatentLayer,
    "full+linear": CompressedHybridLayer,
    "sliding": CompactSlidingLayer,
    "linear": LinearAttentionLayer,
}
_PARTS: dict[Kind, tuple[str, ...]] = {
    "full": ("full",),
    "latent": ("full",),
    "full+linear": ("full", "linear"),
    "sliding": ("sliding",),
    "linear": ("linear",),
    "none": (),
}


def _holds_tensors(layer: CacheLayerMixin) -> bool:
    values = list(vars(layer).values())
    for value in vars(layer).values():
        values += value.values() if isinstance(value, dict) else ()
    return any(isinstance(value, Tensor) for value in values)


# --- full attention -----------------------------------------------------------------------------------------------


def _take_full(layer: CompressedLayer) -> tuple[FullFacts, dict[str, Tensor]]:
    tail = layer.tail
    if tail is None or not layer.is_fresh():
        raise ContextError("only a compressed prompt without any later tokens can be written to a file.")
    distinct = layer.distinct_prefixes()
    places = {id(prefix): place for place, prefix in enumerate(distinct)}
    tensors: dict[str, Tensor] = {}
    prefixes = []
    for place, prefix in enumerate(distinct):
        block = take_apart(prefix.block)
        tensors[f"prefixes.{place}.positions"] = prefix.positions
        tensors |= {f"prefixes.{place}.{name}": tensor for name, tensor in block.tensors.items()}
        prefixes.append(PrefixFacts(prefix.length, block.format, block.facts))
    facts = FullFacts(
        seen=layer.seen,
        heads=tail.keys.shape[1],
        key_dim=tail.keys.shape[-1],
        value_dim=tail.values.shape[-1],
        dtype=written_dtype(tail.keys.dtype),
        rows=[None if prefix is None else places[id(prefix)] for prefix in layer.prefixes],
        prefixes=prefixes,
    )
    return facts, tensors


def _put_full(layer: CompressedLayer, facts: FullFacts, left: dict[str, Tensor], expected: Expected) -> None:
    check_full(facts, expected.rows, expected.tokens, expected.dtype)
    prefixes = [
        _prefix(facts, described, taken(f"prefixes.{place}", left), expected)
        for place, described in enumerate(facts.prefixes)
    ]
    shape = (expected.rows, facts.heads, 0)
    keys = torch.empty(*shape, facts.key_dim, dtype=expected.dtype, device=expected.device)
    values = torch.empty(*shape, facts.value_dim, dtype=expected.dtype, device=expected.device)
    layer.lazy_initialization(keys, values)
    layer.prefixes = [None if place is None else prefixes[place] for place in facts.rows]
    layer.tail = Tail(keys, values)
    layer.seen, layer.compressed = facts.seen, True


def _prefix(layer: FullFacts, described: PrefixFacts, tensors: dict[str, Tensor], expected: Expected) -> Prefix:
    positions = tensors.pop("positions", None)
    if positions is None:
        raise ValueError("a prefix has no positions")
    block = put_together(described.format, tensors, described.facts)
    check_prefix(layer, described, block, positions)
    return Prefix(on_device(block, expected.device), positions.to(expected.device), described.length, described.length)


# --- transformers' own layers -------------------------------------------------------------------------------------


def _take_sliding(layer: CompactSlidingLayer) -> tuple[SlidingFacts, dict[str, Tensor]]:
    return SlidingFacts(layer.cumulative_length), {"keys": layer.keys, "values": layer.values}


def _put_sliding(layer: CompactSlidingLayer, facts: SlidingFacts, left: dict[str, Tensor], expected: Expected) -> None:
    parts = [left.pop(name, None) for name in ("keys", "values")]
    # As the stock layer: a new token sees so many before itself.
    held = min(expected.tokens, layer.sliding_window - 1)
    check_sliding(facts, parts, (expected.rows, held), expected.tokens, expected.dtype)
    keys, values = (part.to(expected.device, copy=True) for part in parts if part is not None)
    layer.lazy_initialization(keys, values)
    layer.keys, layer.values, layer.cumulative_length = keys, values, facts.seen


def _take_linear(layer: LinearAttentionLayer) -> tuple[LinearFacts, dict[str, Tensor]]:
    tensors: dict[str, Tensor] = {}
    for name, states in (("conv", layer.conv_states), ("recurrent", layer.recurrent_states)):
        tensors |= {f"{name}.{index}": state for index, state in states.items() if state is not None}
    return LinearFacts(), tensors


def _put_linear(layer: LinearAttentionLayer, facts: LinearFacts, left: dict[str, Tensor], expected: Expected) -> None:
    # As a prefill of exactly the convolution's width: the layer copies both.
    for name, update, states in (
        ("conv", layer.update_conv_state, layer.conv_states),
        ("recurrent", layer.update_recurrent_state, layer.recurrent_states),
    ):
        found = taken(name, left)
        check_states(found, [str(index) for index in states], expected.rows)
        for index, state in found.items():
            update(state.to(expected.device), int(index))


def taken(start: str, left: dict[str, Tensor]) -> dict[str, Tensor]:
    """Takes the tensors whose names begin with `start.`, by the rest of their names."""
    names = [name for name in left if name.startswith(f"{start}.")]
    return {name.removeprefix(f"{start}."): left.pop(name) for name in names}


_TAKE: dict[str, Callable[[Any], tuple[Any, dict[str, Tensor]]]] = {
    "full": _take_full,
    "sliding": _take_sliding,
    "linear": _take_linear,
}
_PUT: dict[str, Callable[[Any, Any, dict[str, Tensor], Expected], None]] = {
    "full": _put_full,
    "sliding": _put_sliding,
    "linear": _put_linear,
}
