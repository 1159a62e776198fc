"""The cache that a user passes to `model.generate(past_key_values=...)`."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any
from weakref import ref

import torch
from torch import Tensor
from transformers import Cache, PreTrainedModel

from winnow.cache.compression import Compression
from winnow.cache.extras import check_extras
from winnow.cache.fold import check_foldable
from winnow.cache.guards import check_implementation, check_model, text_config
from winnow.cache.hybrid import heads_of, layers_of
from winnow.cache.layer import CompressedLayer
from winnow.cache.observer import Observer
from winnow.cache.stats import CacheStats, storage_bytes
from winnow.composition.method import Method, Rank, own_ranking
from winnow.errors import CacheError


class CompressedCache(Cache):
    """A KV cache that keeps the slots a method chooses and frees the rest.

    Every full-attention layer is compressed right after its own prefill; tokens that come later are kept dense, or
    folded into what is compressed every `fold_every` tokens, with eviction, so that memory stays within the budget.
    One cache serves one batch of sequences; for a new prompt make a new cache, to continue pass it again.

    Args:
        model: a decoder-only model after `model.set_attn_implementation("winnow")`.
        method: from `winnow.method(name, budget=...)`.
        prompt_length: tokens of the prompt, padding included, where it arrives in several chunks
            (`prefill_chunk_size`, own loops); compression waits for the last of them.
        heads_per_layer: KV heads of every full-attention layer, for models whose configuration does not tell.
        fold_every: fold the later tokens of a row before the next ones arrive, once they are so many; None: never.
        defer: leave the prompt dense; `compressed_by` then makes forks that are compressed, each by a method of its
            own. Nothing can be decoded from the cache itself.
        observer: sees every row of every layer right after its compression.

    Raises:
        CacheError: the attention implementation is not "winnow".
        ModelError: an encoder-decoder, latent-attention or bidirectional model; one that does not show what the
            method asks for (how queries are rotated, a plain output projection).
        MethodError: a method without the head scores that it needs, or with those of a model of another shape; one that
            cannot fold.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        method: Method,
        *,
        prompt_length: int | None = None,
        heads_per_layer: Sequence[int] | None = None,
        fold_every: int | None = None,
        defer: bool = False,
        observer: Observer | None = None,
    ) -> None:
        check_model(model)
        if fold_every is not None:
            check_foldable(method, fold_every)
        if prompt_length is not None and prompt_length < 1:
            raise CacheError(f"prompt_length is {prompt_length}; give the number of prompt tokens, or None.")
        self.config = text_config(model)
        heads = list(heads_per_layer) if heads_per_layer is not None else heads_of(model, self.config)
        method = method.for_model(model.config.name_or_path, tuple(heads))
        check_extras(model, self.config, method.scorer.extras)
        self.compression = Compression(
            method, heads, ref(model), prompt_length, fold_every=fold_every, defer=defer, observer=observer
        )
        layers = layers_of(self.config, self.compression)
        super().__init__(layers=layers)
        found = len(self.compressed_layers())
        if not found:
            raise CacheError(
                f"{type(model).__name__} has no full-attention layer, so nothing can be compressed; use its own cache."
            )
        if len(heads) != found:
            raise CacheError(f"heads_per_layer names {len(heads)} layers, the model has {found} full-attention layers.")

    @property
    def method(self) -> Method:
        """The method that compresses this cache."""
        return self.compression.method

    def compressed_layers(self) -> list[CompressedLayer]:
        """The full-attention layers, in order."""
        return [layer for layer in self.layers if isinstance(layer, CompressedLayer)]

    def compressed_by(self, method: Method, rank: Rank = own_ranking) -> CompressedCache:
        """A fork of a prompt that waits for its compression, compressed by `method`.

        A cache made with `defer=True` waits once its prompt is there: the prefill, which is the same whatever the
        method, is then done once for any number of methods. rank: see `Method.select`.

        Raises:
            CacheError: no prompt is waiting.
        """
        if not all(layer.waiting for layer in self.compressed_layers()):
            raise CacheError(
                "no prompt is waiting for its compression; make the cache with defer=True, then run the prompt through "
                "the model."
            )
        # Compression reads the prompt's queries and lets go of them, so the fork needs no copy.
        twin = deepcopy(self, {id(layer.arriving): layer.arriving for layer in self.compressed_layers()})
        twin.compression.choose(method, rank)
        for layer in twin.compressed_layers():
            layer.compress_waiting()
        return twin

    def extended(self, prompt_length: int) -> CompressedCache:
        """A fork of a prompt that is still arriving, which will be `prompt_length` tokens long.

        Raises:
            CacheError: the prompt is compressed already, or longer.
        """
        if any(layer.compressed for layer in self.compressed_layers()) or prompt_length < self.get_seq_length():
            raise CacheError(
                f"a prompt of {self.get_seq_length()} tokens cannot become {prompt_length} tokens long, or it is "
                "compressed already; fork the cache before its last chunk."
            )
        twin = deepcopy(self)
        twin.compression.prompt_length = prompt_length
        return twin

    @classmethod
    def joined(cls, caches: Sequence[CompressedCache]) -> CompressedCache:
        """One cache with the rows of several, in order, that share their prefixes; for decoding side by side.

        Prompts may differ in length, so pass `position_ids` when decoding. Tokens after the prompt are not taken over.

        Raises:
            CacheError: no cache, or one that is not compressed, holds later tokens, has layers of another kind, another
                fold_every, or folds by another method.
        """
        if not caches or not all(cache._is_fresh() for cache in caches):
            raise CacheError(
                "only caches of models with nothing but full attention can be joined, right after their prompts were "
                "compressed and before anything is decoded."
            )
        if len({cache.compression.folding for cache in caches}) > 1:
            raise CacheError(
                "caches that fold their tails differently cannot be joined; give all the same fold_every and method."
            )
        twin = deepcopy(caches[0])
        for layer, *others in zip(twin.compressed_layers(), *(c.compressed_layers() for c in caches[1:]), strict=True):
            layer.join(others)
        return twin

    def coalitions(self, masks: Tensor, window: int) -> CompressedCache:
        """C forks of a cache of one row, as rows of one cache that share its prefix memory; for decoding side by side.

        In row i, KV head h of compressed layer l reads all that the cache kept for it where masks[i, l, h], and only
        the last `window` prompt tokens elsewhere. Tokens after the prompt are read by every head.

        Args:
            masks: [C, L, H] bool, L compressed layers of H KV heads.
            window: tokens, at least 0; how many of them a head has depends on what was kept.

        Raises:
            CacheError: nothing is compressed yet, several rows, a cache that folds, masks of another shape or type, a
                negative window.
        """
        if self.compression.fold_every is not None:
            raise CacheError("coalitions read views of a prompt, which cannot be folded; leave fold_every out.")
        ours = self.compressed_layers()
        if not all(layer.compressed and len(layer.prefixes) == 1 and layer.prefixes[0] for layer in ours):
            raise CacheError("coalitions are formed of a cache that holds a single row, whose prompt is compressed.")
        heads = self.compression.heads
        fits = masks.dtype == torch.bool and masks.dim() == 3 and len(masks) and masks.shape[1] == len(heads)
        if not fits or set(heads) != {masks.shape[2]}:
            raise CacheError(
                f"masks must be a bool tensor [coalitions, {len(heads)}, {' or '.join(map(str, sorted(set(heads))))}], "
                f"one for every KV head, not {list(masks.shape)} of {masks.dtype}."
            )
        if window < 0:
            raise CacheError(f"window is {window}; give the number of last prompt tokens that every head keeps.")
        twin = deepcopy(self)
        # As beams do it: the one way to more rows that layers with a linear state know, too.
        twin.reorder_cache(torch.zeros(len(masks), dtype=torch.int64, device=ours[0].device))
        for layer, mask in zip(twin.compressed_layers(), masks.unbind(1), strict=True):
            layer.view_coalitions(mask, window)
        return twin

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """Called once at the start of every forward pass, which makes it the place to check the model's state."""
        check_implementation(self.config)
        sizes: tuple[int, int] = super().get_mask_sizes(query_length, layer_idx)
        return sizes

    def kept(self, layer: int, row: int = 0) -> list[Tensor]:
        """Kept positions of one row, of its prompt and of what was folded since: H int64 tensors, ascending.

        Padding does not count.

        Args:
            layer: the model's layer index.
            row: the sequence in the batch.

        Raises:
            CacheError: not a full-attention layer, no such row, or nothing was compressed yet.
        """
        chosen = self.layers[layer] if -len(self.layers) <= layer < len(self.layers) else None
        if not isinstance(chosen, CompressedLayer):
            full = [index for index, each in enumerate(self.layers) if isinstance(each, CompressedLayer)]
            raise CacheError(f"layer {layer} is not a compressed layer of this model; those are {full}.")
        if not chosen.compressed:
            raise CacheError("nothing was compressed yet; run the prompt through the model first.")
        if not 0 <= row < len(chosen.prefixes):
            raise CacheError(f"there is no row {row}; the cache holds {len(chosen.prefixes)} rows.")
        return chosen.kept(row)

    def stats(self) -> CacheStats:
        """Statistics of what is held now, counted from the tensors alive.

        Raises:
            CacheError: the last tokens never reached the attention function.
        """
        ours = self.compressed_layers()
        for layer in ours:
            layer.check_taken()
        kinds: dict[str, int] = {}
        for layer in ours:
            for kind, size in layer.bytes().items():
                kinds[kind] = kinds.get(kind, 0) + size
        kinds["other"] = kinds.get("other", 0) + self._bytes_of_stock_layers()
        held = sum(kinds.values())
        first = ours[0]
        return CacheStats(
            slots=[layer.slots() for layer in ours],
            tail_tokens=first.tail.lengths.tolist() if first.compressed and first.tail else [],
            bytes=kinds,
            held_bytes=held,
            used_bytes=held - sum(layer.spare_bytes() for layer in ours),
            full_bytes=sum(layer.full_bytes() for layer in ours) + self._bytes_of_stock_layers(),
            tokens_seen=self.get_seq_length(),
            rows=len(first.prefixes),
            compress_seconds=self.compression.seconds,
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> CompressedCache:
        twin = self.__class__.__new__(self.__class__)
        memo[id(self)] = twin
        for name, value in self.__dict__.items():
            twin.__dict__[name] = value if name == "config" else deepcopy(value, memo)
        return twin

    def _is_fresh(self) -> bool:
        """True if all layers are compressed ones and hold a prompt and nothing after it."""
        ours = self.compressed_layers()
        return len(ours) == len(self.layers) and all(layer.is_fresh() for layer in ours)

    def _bytes_of_stock_layers(self) -> int:
        stock = [layer for layer in self.layers if not isinstance(layer, CompressedLayer)]
        tensors: list[Tensor | None] = []
        for layer in stock:
            tensors += [getattr(layer, "keys", None), getattr(layer, "values", None)]
        for layer in self.layers:
            for states in ("conv_states", "recurrent_states"):
                tensors += list(getattr(layer, states, {}).values())
        return storage_bytes(tensors)
