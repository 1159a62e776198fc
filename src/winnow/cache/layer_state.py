"""State of one layer of a compressed cache as facts and tensors, and back.

Full attention is ours. Sliding, chunked and linear layers are transformers' own; they are restored through what they
offer to models, not by their internals, as far as that goes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers.cache_utils import CacheLayerMixin, LinearAttentionLayer

from winnow.cache.hybrid import CompactSlidingLayer, CompressedHybridLayer
from winnow.cache.layer import CompressedLayer
from winnow.cache.prefix import Prefix
from winnow.cache.tail import Tail
from winnow.errors import CacheError
from winnow.kernels.formats.serialize import put_together, take_apart


class LayerState(NamedTuple):
    """A layer taken apart."""

    facts: dict[str, Any]
    tensors: dict[str, Tensor]


def state_of(layer: CacheLayerMixin) -> LayerState:
    """The state of a layer right after its prompt was compressed; tensors are not copied.

    Raises CacheError for a kind of layer that cannot be written, an empty one, and one with tokens after the prompt.
    """
    kind = layer_kind(layer)
    facts: dict[str, Any] = {"kind": kind}
    tensors: dict[str, Tensor] = {}
    for part in _PARTS[kind]:
        found = _TAKE[part](layer)
        facts[part] = found.facts
        tensors |= found.tensors
    return LayerState(facts, tensors)


def restore(layer: CacheLayerMixin, state: LayerState, device: torch.device) -> None:
    """Fills an empty layer with what `state_of` gave. Prefixes are views of its tensors; all else is copied.

    Raises CacheError where the layer is of another kind.
    """
    kind = layer_kind(layer)
    if kind != state.facts["kind"]:
        raise CacheError(
            f"the file holds a {state.facts['kind']} layer where this version of transformers has a {kind} one; "
            "compress the document again."
        )
    for part in _PARTS[kind]:
        _PUT[part](layer, state.facts[part], state.tensors, device)


def layer_kind(layer: CacheLayerMixin) -> str:
    """The name of a layer's kind in files. Raises CacheError for one that cannot be written."""
    for kind, made in _KINDS.items():
        if type(layer) is made:
            return kind
    if not _holds_tensors(layer):
        return "none"
    raise CacheError(
        f"contexts of models with {type(layer).__name__} layers cannot be written to a file: their state is "
        f"transformers' own. Kinds that can: {', '.join(_KINDS)}."
    )


_KINDS: dict[str, type[CacheLayerMixin]] = {
    "full": CompressedLayer,
    "full+linear": CompressedHybridLayer,
    "sliding": CompactSlidingLayer,
    "linear": LinearAttentionLayer,
}
_PARTS = {
    "full": ("full",),
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


def _take_full(layer: CompressedLayer) -> LayerState:
    tail = layer.tail
    if tail is None or not layer.is_fresh():
        raise CacheError("only a prompt that was compressed, and nothing after it, can be written to a file.")
    distinct = layer.distinct_prefixes()
    places = {id(prefix): place for place, prefix in enumerate(distinct)}
    tensors: dict[str, Tensor] = {}
    prefixes = []
    for place, prefix in enumerate(distinct):
        block = take_apart(prefix.block)
        tensors[f"prefixes.{place}.positions"] = prefix.positions
        tensors |= {f"prefixes.{place}.{name}": tensor for name, tensor in block.tensors.items()}
        prefixes.append({"length": prefix.length, "format": block.format, "facts": block.facts})
    facts = {
        "seen": layer.seen,
        "heads": tail.keys.shape[1],
        "key_dim": tail.keys.shape[-1],
        "value_dim": tail.values.shape[-1],
        "dtype": str(tail.keys.dtype).removeprefix("torch."),
        "rows": [None if prefix is None else places[id(prefix)] for prefix in layer.prefixes],
        "prefixes": prefixes,
    }
    return LayerState(facts, tensors)


def _put_full(
    layer: CompressedLayer, facts: Mapping[str, Any], tensors: Mapping[str, Tensor], device: torch.device
) -> None:
    shape = (len(facts["rows"]), facts["heads"], 0)
    dtype = getattr(torch, facts["dtype"])
    keys = torch.empty(*shape, facts["key_dim"], dtype=dtype, device=device)
    values = torch.empty(*shape, facts["value_dim"], dtype=dtype, device=device)
    layer.lazy_initialization(keys, values)
    prefixes = [
        _prefix(described, _under(f"prefixes.{place}", tensors), device)
        for place, described in enumerate(facts["prefixes"])
    ]
    layer.prefixes = [None if place is None else prefixes[place] for place in facts["rows"]]
    layer.tail = Tail(keys, values)
    layer.seen, layer.compressed = facts["seen"], True


def _prefix(described: Mapping[str, Any], tensors: dict[str, Tensor], device: torch.device) -> Prefix:
    positions = tensors.pop("positions").to(device)
    block = put_together(described["format"], tensors, described["facts"], device)
    return Prefix(block, positions, described["length"], described["length"])


# --- transformers' own layers -------------------------------------------------------------------------------------


def _take_sliding(layer: CompactSlidingLayer) -> LayerState:
    return LayerState({"seen": layer.cumulative_length}, {"keys": layer.keys, "values": layer.values})


def _put_sliding(
    layer: CompactSlidingLayer, facts: Mapping[str, Any], tensors: Mapping[str, Tensor], device: torch.device
) -> None:
    keys, values = (tensors[name].to(device, copy=True) for name in ("keys", "values"))
    layer.lazy_initialization(keys, values)
    layer.keys, layer.values, layer.cumulative_length = keys, values, facts["seen"]


def _take_linear(layer: LinearAttentionLayer) -> LayerState:
    tensors: dict[str, Tensor] = {}
    for name, states in (("conv", layer.conv_states), ("recurrent", layer.recurrent_states)):
        tensors |= {f"{name}.{index}": state for index, state in states.items() if state is not None}
    return LayerState({}, tensors)


def _put_linear(
    layer: LinearAttentionLayer, facts: Mapping[str, Any], tensors: Mapping[str, Tensor], device: torch.device
) -> None:
    # As a prefill of exactly the convolution's width: the layer copies both.
    for name, update in (("conv", layer.update_conv_state), ("recurrent", layer.update_recurrent_state)):
        for index, state in _under(name, tensors).items():
            update(state.to(device), int(index))


def _under(start: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors whose names begin with `start.`, by the rest of their names."""
    return {name.removeprefix(f"{start}."): part for name, part in tensors.items() if name.startswith(f"{start}.")}


_TAKE: dict[str, Callable[[Any], LayerState]] = {
    "full": _take_full,
    "sliding": _take_sliding,
    "linear": _take_linear,
}
_PUT: dict[str, Callable[[Any, Mapping[str, Any], Mapping[str, Tensor], torch.device], None]] = {
    "full": _put_full,
    "sliding": _put_sliding,
    "linear": _put_linear,
}
