"""The layers of a model's cache: ours for full attention, transformers' own for everything else."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import (
    CacheLayerMixin,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionAndSlidingWindowAttentionLayer,
    LinearAttentionLayer,
)

from winnow.cache.compression import Compression
from winnow.cache.decoder_modules import decoder_modules
from winnow.cache.held_rows import HeldRows
from winnow.cache.latent import is_latent, slot_dims
from winnow.cache.latent_layer import LatentLayer
from winnow.cache.layer import CompressedLayer
from winnow.cache.layer_config import of_layer
from winnow.cache.linear_states import join_states
from winnow.cache.progress import Part
from winnow.cache.sliding_layer import CompactSlidingLayer
from winnow.cache.writable import writable
from winnow.errors import OWN_CACHE, CacheError, ModelError
from winnow.models.cache_argument import with_cache
from winnow.models.devices import input_device


class CompactSlidingHybridLayer(LinearAttentionAndSlidingWindowAttentionLayer, CompactSlidingLayer):
    """A layer with a linear state next to such a window (Zaya)."""

    def crop(self, tokens_to_remove: int) -> None:
        """As the stock layer, which asks its parts by name."""
        super().crop(tokens_to_remove)
        if self.is_initialized:
            self._own()


class CompressedHybridLayer(LinearAttentionLayer, CompressedLayer):
    """A layer with a linear state next to full attention (Falcon-H1): the first as it is, the second compressed."""

    is_compileable = False
    supports_early_init = False

    def __init__(self, compression: Compression, index: int, number_of_states: int = 1) -> None:
        CompressedLayer.__init__(self, compression, index)
        attention_state = dict(self.__dict__)
        LinearAttentionLayer.__init__(self, number_of_states=number_of_states)
        self.__dict__.update(attention_state)

    def lazy_initialization(self, *args: Any, **kwargs: Any) -> None:
        """Keys and values come as two positional arguments, linear states as keywords."""
        if args:
            CompressedLayer.lazy_initialization(self, *args)
        else:
            LinearAttentionLayer.lazy_initialization(self, **kwargs)

    def activate_past_recording(self) -> None:
        """Both parts wait for `crop`."""
        LinearAttentionLayer.activate_past_recording(self)
        CompressedLayer.activate_past_recording(self)

    def crop(self, tokens_to_remove: int) -> None:
        """Both parts take back the same tokens."""
        LinearAttentionLayer.crop(self, tokens_to_remove)
        CompressedLayer.crop(self, tokens_to_remove)

    def join(self, others: Sequence[HeldRows]) -> None:
        """Both parts get the rows of others."""
        CompressedLayer.join(self, others)
        join_states(self, [other for other in others if isinstance(other, LinearAttentionLayer)])

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Both parts in the new order."""
        CompressedLayer.reorder_cache(self, beam_idx)

    def _select_rows(self, rows: Tensor) -> None:
        """Both parts of rows in a new order, with repeats or omissions."""
        LinearAttentionLayer.reorder_cache(self, rows)
        CompressedLayer._select_rows(self, rows)

    def reset(self) -> None:
        """Empty again."""
        LinearAttentionLayer.reset(self)
        CompressedLayer.reset(self)

    def offload(self) -> None:
        """Refused."""
        CompressedLayer.offload(self)

    prefetch = offload


def settle_state(states: dict[int, Tensor], index: int) -> None:
    """Has one of a layer's linear states be changed in place by later tokens, wherever these come.

    The graph behind it is let go of, and one that was made in inference mode is copied, for tokens outside of it.
    """
    if states[index].requires_grad:
        states[index] = states[index].detach()
    if states[index].is_inference():
        with writable():
            states[index] = states[index].clone()


def is_attention_alone(layer: CacheLayerMixin) -> bool:
    """True for a compressed layer without a linear state."""
    return isinstance(layer, CompressedLayer) and not isinstance(layer, LinearAttentionLayer)


def is_of_rows(layer: CacheLayerMixin) -> bool:
    """True for a layer whose rows may stand beside those of others."""
    return isinstance(layer, CompressedLayer) or type(layer) is LinearAttentionLayer


def holds_state(layer: object) -> bool:
    """False for a layer without attention, or one that shares another's keys and values: a cache has a dummy for it."""
    return isinstance(layer, CacheLayerMixin | LinearAttentionLayer)


def stock_layers(config: PreTrainedConfig) -> list[CacheLayerMixin]:
    """The layers of transformers' own cache for a decoder, empty."""
    return DynamicCache(config=config).layers


def probed_layers(model: PreTrainedModel) -> list[CacheLayerMixin]:
    """The same layers after one token, as configurations do not tell what linear states look like."""
    probe = DynamicCache(config=model.config.get_text_config(decoder=True))
    token = torch.zeros(1, 1, dtype=torch.int64, device=input_device(model))
    with torch.no_grad():
        model(input_ids=token, **with_cache(model, probe))
    return probe.layers


def is_full_attention(layer: CacheLayerMixin) -> bool:
    """True if a stock layer holds every token's keys and values, and nothing that belongs to one token's index."""
    return type(layer) in (DynamicLayer, LinearAttentionAndFullAttentionLayer)


def layers_of(config: PreTrainedConfig, compression: Compression) -> list[CacheLayerMixin]:
    """One cache layer per decoder layer, in order."""
    layers: list[CacheLayerMixin] = []
    full, kind = 0, LatentLayer if is_latent(config) else CompressedLayer
    for stock in stock_layers(config):
        layers.append(_own_layer(stock, compression, full, kind))
        full += is_full_attention(stock)
    return layers


def _own_layer(
    stock: CacheLayerMixin, compression: Compression, index: int, kind: type[CompressedLayer]
) -> CacheLayerMixin:
    if type(stock) is DynamicLayer:
        return kind(compression, index)
    if type(stock) is LinearAttentionAndFullAttentionLayer:
        return CompressedHybridLayer(compression, index, stock.number_of_states)
    if type(stock) is DynamicSlidingWindowLayer:
        return CompactSlidingLayer(stock.sliding_window)
    if type(stock) is LinearAttentionAndSlidingWindowAttentionLayer:
        return CompactSlidingHybridLayer(stock.sliding_window, stock.number_of_states)
    if type(stock).__module__ != DynamicCache.__module__:
        raise ModelError(
            f"this model's cache has layers of its own kind ({type(stock).__name__}), which winnow does not support; "
            f"{OWN_CACHE}."
        )
    return stock


def heads_of(model: PreTrainedModel, config: PreTrainedConfig) -> list[int]:
    """KV heads of every full-attention layer, from its attention module where that says so.

    Heads that share latents are one.
    """
    full = [index for index, stock in enumerate(stock_layers(config)) if is_full_attention(stock)]
    if is_latent(config):
        return [1 for _ in full]
    by_layer = _groups_by_layer(model)
    return [_heads_of_layer(of_layer(config, index), by_layer.get(index)) for index in full]


def token_bytes(model: PreTrainedModel) -> int:
    """Bytes that a token takes in a full cache of the layers that Winnow compresses, keys and values."""
    config = model.config.get_text_config(decoder=True)
    return sum(heads_of(model, config)) * sum(slot_dims(config)) * model.dtype.itemsize


def _heads_of_layer(config: PreTrainedConfig, group: int | None) -> int:
    """KV heads of a layer. group: query heads of each, where its module says so."""
    heads: int = config.num_attention_heads
    return heads // group if group else getattr(config, "num_key_value_heads", None) or heads


def _groups_by_layer(model: nn.Module) -> dict[int, int]:
    """Query heads per KV head of the decoder's attention modules, by layer index."""
    return {
        layer: groups
        for layer, module in decoder_modules(model)
        if isinstance(groups := getattr(module, "num_key_value_groups", None), int)
    }


def parts_of(layers: Iterable[CacheLayerMixin], config: PreTrainedConfig) -> Iterator[Part]:
    """The parts of a cache that every forward pass reaches."""
    types = getattr(config, "layer_types", None) or ()
    for index, layer in enumerate(layers):
        if isinstance(layer, CompressedLayer):
            yield layer.part
        elif isinstance(layer, CacheLayerMixin):
            yield Part("sliding", index)
        # Some releases give layers without any attention a linear state that nobody uses.
        if isinstance(layer, LinearAttentionLayer) and types[index : index + 1] not in (["moe"], ["mlp"]):
            yield Part("linear", index)


def check_crop(layer: CacheLayerMixin, tokens: int) -> None:
    """Raises CacheError where a layer cannot take back its last `tokens` tokens."""
    if isinstance(layer, CompressedLayer | CompactSlidingLayer):
        layer.check_crop(tokens)
    if not isinstance(layer, LinearAttentionLayer) or not any(layer.is_conv_states_initialized.values()):
        return
    if not layer.record_past or (tokens and any(layer.is_recurrent_states_initialized.values())):
        raise CacheError(
            f"cannot crop {tokens} tokens: the linear layers of this model keep a state, not tokens. Fork the cache "
            "(copy.deepcopy) before you add tokens that may be removed."
        )
