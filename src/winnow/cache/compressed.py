"""The cache that a user gives to `model.generate`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any, NoReturn, SupportsIndex
from weakref import WeakSet, ref

import torch
from torch import Tensor
from transformers import Cache, PreTrainedModel
from transformers.cache_utils import LinearAttentionLayer

from winnow.budget import readable_bytes
from winnow.cache.another_prompt import nothing_new
from winnow.cache.compression import Compression, check_one_reading
from winnow.cache.decoder_modules import decoder_modules
from winnow.cache.extras import check_extras
from winnow.cache.fold import check_foldable
from winnow.cache.gradients import check_no_gradients
from winnow.cache.guards import begun_anew, check_implementation, check_model, optional_count, text_config
from winnow.cache.hybrid import (
    check_crop,
    heads_of,
    holds_state,
    is_attention_alone,
    is_of_rows,
    layers_of,
    parts_of,
    settle_state,
)
from winnow.cache.latent_layer import check_sharing
from winnow.cache.layer import CompressedLayer
from winnow.cache.left_out import check_takes_up
from winnow.cache.linear_states import join_states
from winnow.cache.listening import Replayed
from winnow.cache.observer import Observer
from winnow.cache.opaque import opaque
from winnow.cache.progress import Part
from winnow.cache.sliding_layer import CompactSlidingLayer
from winnow.cache.sliding_step import leave, notes_arrive, try_notes
from winnow.cache.stats import CacheStats, storage_bytes
from winnow.cache.writable import writable
from winnow.composition.method import Method, Rank, own_ranking
from winnow.composition.names import as_method
from winnow.errors import CacheError, MethodError
from winnow.kernels.recording import refuse_recording
from winnow.models.kinds import starts_anew

_JOINABLE = "no sliding window of the model may hold padding, be on a GPU, or lie beside a linear state"
NOT_PICKLED = (
    "winnow caches and contexts are not pickled: they belong to a model, and pickles run code when they are read. "
    "Write a context (from winnow.compress) with context.save(path) and read it with winnow.load_context(path, model)."
)


class CompressedCache(Cache):
    """A KV cache that keeps the slots a method chooses and frees the rest.

    Every full-attention layer is compressed right after its own prefill. Later tokens stay dense by default. With
    `fold_every` or `fold_turns`, they are folded: compressed by the same method, so that memory stays within the
    budget. `fold_every` folds all later tokens; `fold_turns` folds long turns and leaves generated tokens dense. Under
    a method that evicts nothing and packs its slots ("full+bits(4)"), folding only packs.

    One cache serves one batch of sequences. To continue a conversation, pass the cache again. For a new prompt, make a
    new cache (`winnow.generate` does). A cache does not see the text: `generate()` skips as many tokens of its input as
    the cache has seen, without comparing them. A longer new prompt would be answered from the earlier prompt's text,
    unnoticed.

    Args:
        model: a decoder-only model, after `model.set_attn_implementation("winnow")`.
        method: the result of `winnow.method(name, budget=...)`, or its text: "adakv @ 128".
        prompt_length: number of tokens of the prompt, padding included. Needed if the prompt arrives in several chunks
            (`prefill_chunk_size`, your own loop): compression then waits for the last chunk.
        heads_per_layer: number of KV heads of every full-attention layer. Needed only if the model's configuration
            does not say.
        fold_every: fold the later tokens of a row whenever there are this many; None: never. A row holds its budget
            and at most this many dense tokens. A budget in bytes includes them.
        fold_turns: after a turn (several tokens at once: a second document, a long message), fold a row's dense tokens
            if there are more than this many; None: never. The turn itself is attended to exactly, before it is folded.
            A row holds its budget, at most this many dense tokens, and the tokens that came one by one since the last
            turn, in buffers with half as much room again. A budget that is a share of the prompt becomes a share of
            all tokens so far. A turn that arrives in chunks is folded chunk by chunk.
        defer: leave the prompt dense. `compressed_by` then makes compressed forks, each with a method of its own. The
            cache itself cannot be used for decoding.
        waiting_queries: number of last queries of the prompt that a deferred cache keeps for these methods, if you
            know how many they look at; None: all, which can take more memory than keys and values.
        observer: an object that sees every row of every layer right after its compression.

    Raises:
        CacheError: the attention implementation is not "winnow", or prompt_length is not a number of tokens.
        ModelError: the model is an encoder-decoder, is bidirectional or is not a transformers model; an adapter puts
            tokens of its own before every input; or the model does not expose what the method needs (how queries are
            rotated, a plain output projection).
        MethodError: the method lacks the head scores that it needs, or has those of a model of another shape; it reads
            a prompt twice before it compresses it (kvzip), without `defer`; it cannot fold; or fold_every or
            fold_turns is not a number of tokens.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        method: Method | str,
        *,
        prompt_length: int | None = None,
        heads_per_layer: Sequence[int] | None = None,
        fold_every: int | None = None,
        fold_turns: int | None = None,
        defer: bool = False,
        waiting_queries: int | None = None,
        observer: Observer | None = None,
    ) -> None:
        check_model(model)
        method = as_method(method)
        fold_every = optional_count("fold_every", fold_every, "new tokens after which they are folded", MethodError)
        fold_turns = optional_count("fold_turns", fold_turns, "tokens that stay dense after a turn", MethodError)
        if fold_every is not None or fold_turns is not None:
            check_foldable(method, fold_every, fold_turns)
        prompt_length = optional_count("prompt_length", prompt_length, "prompt tokens")
        waiting_queries = optional_count("waiting_queries", waiting_queries, "queries that wait with a prompt")
        self.config = text_config(model)
        if not defer:
            check_one_reading(method)
        check_sharing(self.config, method, folds=fold_every is not None or fold_turns is not None)
        heads = list(heads_per_layer) if heads_per_layer is not None else heads_of(model, self.config)
        method = method.for_model(model.config.name_or_path, tuple(heads))
        check_extras(model, self.config, method.scorer.extras)
        self.compression = Compression(
            method,
            heads,
            ref(model),
            prompt_length,
            fold_every=fold_every,
            fold_turns=fold_turns,
            defer=defer,
            waiting_queries=waiting_queries,
            observer=observer,
            attentions=WeakSet(module for _, module in decoder_modules(model)),
        )
        layers = layers_of(self.config, self.compression)
        super().__init__(layers=layers)
        self._has_linear = any(isinstance(layer, LinearAttentionLayer) for layer in layers)
        self._starts_anew = starts_anew(self.config)
        for part in parts_of(layers, self.config):
            self.compression.progress.add(part)
        found = len(self.compressed_layers())
        if not found:
            raise CacheError(
                f"{type(model).__name__} has no full-attention layer, so nothing can be compressed; use its own cache."
            )
        if len(heads) != found:
            raise CacheError(f"heads_per_layer has {len(heads)} layers; give {found}, one per full-attention layer.")

    @property
    def method(self) -> Method:
        """The method that compresses this cache."""
        return self.compression.method

    @property
    def is_linear(self) -> list[bool]:
        """True for layers with only a linear state; one beside full attention has keys that need a mask."""
        linear = super().is_linear
        return [
            each and not isinstance(layer, CompressedLayer) for each, layer in zip(linear, self.layers, strict=True)
        ]

    def compressed_layers(self) -> list[CompressedLayer]:
        """The full-attention layers, in order."""
        return [layer for layer in self.layers if isinstance(layer, CompressedLayer)]

    def compressed_by(
        self,
        method: Method | str,
        rank: Rank = own_ranking,
        fold_every: int | None = None,
        replayed: Replayed | None = None,
    ) -> CompressedCache:
        """A fork whose prompt is compressed by `method`, of a cache that was made with `defer=True`.

        The prefill does not depend on the method, so one prefill serves any number of methods. The fork reads the
        prompt in place, without a copy, and holds only what its method keeps.

        Args:
            method: the result of `winnow.method`, or its text.
            rank: see `Method.select`; it applies to the prompt only.
            fold_every: for the fork; None: the same as this cache's.
            replayed: the result of `winnow.cache.replay.replay`, for a method that reads the prompt again.

        Raises:
            CacheError: no prompt is waiting for compression, the method looks at more queries than the cache kept, or
                it needs a replay that is not given.
            MethodError: the fork is to fold, and the method cannot.
        """
        self._check_whole()
        method = as_method(method)
        check_sharing(self.config, method, folds=fold_every is not None or self.compression.folds)
        if not all(layer.waiting for layer in self.compressed_layers()):
            raise CacheError(
                "no prompt is waiting for compression; make the cache with defer=True, then run the prompt through the "
                "model."
            )
        # Compression reads the prompt and lets go of it, so the fork needs no copy.
        read = [part for layer in self.compressed_layers() for part in (layer.arriving, layer.tail)]
        twin = deepcopy(self, {id(part): part for part in read})
        queries = min(layer.arriving.queries for layer in self.compressed_layers())
        twin.compression.choose(method, rank, fold_every, self.get_seq_length(), queries, replayed)
        for layer in twin.compressed_layers():
            layer.compress_waiting()
        # What is folded later is another prompt to a ranking that remembers this one.
        twin.compression.forget_prompt()
        return twin

    def extended(self, prompt_length: int) -> CompressedCache:
        """A fork of a prompt that is still arriving, with `prompt_length` as its final number of tokens.

        Raises:
            CacheError: the prompt is already compressed, or already longer.
        """
        goal = optional_count("prompt_length", prompt_length, "prompt tokens")
        compressed = any(layer.compressed for layer in self.compressed_layers())
        if goal is None or compressed or goal < self.get_seq_length():
            raise CacheError(
                f"a prompt with {self.get_seq_length()} tokens so far cannot get the length {prompt_length!r}, or it "
                "is already compressed; fork the cache before its last chunk."
            )
        twin = deepcopy(self)
        twin.compression.prompt_length = goal
        return twin

    @classmethod
    def joined(cls, caches: Sequence[CompressedCache]) -> CompressedCache:
        """One cache with the rows of several caches, in order, for decoding side by side.

        The compressed prefixes are shared; tokens after the prompts are copied. Rows may differ in length, so pass
        `position_ids` when decoding.

        Raises:
            CacheError: there is no cache; one is not compressed, is in assisted decoding, had padding among its later
                tokens or in its sliding windows; or they differ in fold_every, fold_turns or the method that folds.
        """
        if not caches or not all(cache._is_joinable() for cache in caches):
            raise CacheError(
                f"these caches cannot be joined: {_JOINABLE}, and all prompts must be compressed; no cache may be in "
                "assisted decoding, or have padding among its later tokens."
            )
        if len({cache.compression.folding for cache in caches}) > 1:
            raise CacheError(
                "caches that fold their tails differently cannot be joined; give all the same fold_every, fold_turns "
                "and method."
            )
        twin = deepcopy(caches[0])
        twin.compression.prompt_length = max(cache.get_seq_length() for cache in caches)
        for layer, *others in zip(twin.layers, *(cache.layers for cache in caches[1:]), strict=True):
            if isinstance(layer, CompressedLayer | CompactSlidingLayer):
                layer.join(others)
            elif isinstance(layer, LinearAttentionLayer):
                join_states(layer, others)
        return twin

    def alone(self, row: int) -> CompressedCache:
        """A fork with a single row, which shares the row's compressed prefix. This cache does not change.

        Raises:
            CacheError: nothing is compressed yet, the last forward pass was not finished, or there is no such row.
        """
        if not self._is_joinable():
            raise CacheError(
                f"this row cannot get its own cache: {_JOINABLE}, and the prompt must be compressed; the cache may not "
                "be in assisted decoding, or have padding among its later tokens."
            )
        rows = len(self.compressed_layers()[0].prefixes)
        if not 0 <= row < rows:
            raise CacheError(f"there is no row {row}; the cache holds {rows} rows.")
        twin = deepcopy(self)
        for layer in twin.compressed_layers():
            layer.leave_alone(row)
        for window in twin.sliding_layers():
            window.leave_alone(row, twin.compressed_layers()[0].seen)
        for layer in twin.layers:
            if type(layer) is LinearAttentionLayer:
                layer.reorder_cache(torch.tensor([row], device="cpu"))
        return twin

    def coalitions(self, masks: Tensor, window: int) -> CompressedCache:
        """C forks of a cache with one row, as the rows of one cache, for decoding side by side.

        The forks share the memory of the compressed prefix. In row i, KV head h of compressed layer l reads everything
        that the cache kept for it if masks[i, l, h] is True; otherwise it reads only the last `window` prompt tokens.
        Every head reads the tokens after the prompt.

        Args:
            masks: [C, L, H] bool, for L compressed layers of H KV heads.
            window: number of tokens, at least 0. A head reads only those of them that were kept.

        Raises:
            CacheError: nothing is compressed yet, the cache has several rows or folds, the masks have another shape or
                type, or the window is negative.
        """
        if self.compression.folds:
            raise CacheError(
                "coalitions share a prompt, which then cannot be folded; leave fold_every and fold_turns out."
            )
        self._check_whole()
        ours = self.compressed_layers()
        if not all(layer.compressed and len(layer.prefixes) == 1 and layer.prefixes[0] for layer in ours):
            raise CacheError("coalitions need a cache with a single row, whose prompt is compressed.")
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
        twin.compression.prompt_length = self.get_seq_length()
        # As beams do it: the one way to more rows that layers with a linear state know, too.
        twin.reorder_cache(torch.zeros(len(masks), dtype=torch.int64, device=ours[0].device))
        for layer, mask in zip(twin.compressed_layers(), masks.unbind(1), strict=True):
            layer.view_coalitions(mask, window)
        return twin

    # --- forward passes ------------------------------------------------------------------------------------

    @opaque
    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """Sizes of the attention mask. Called at the start of every forward pass, it also checks the model's state."""
        check_implementation(self.config)
        self._check_whole()
        if not query_length:
            raise nothing_new(self.compressed_layers()[0].seen)
        if query_length > 1 and self._starts_anew and self.compressed_layers()[0].seen:
            raise begun_anew(self.config)
        self._check_linear_gradients()
        self._compress_waiting()
        sizes: tuple[int, int] = super().get_mask_sizes(query_length, layer_idx)
        if sizes[0] == query_length and (model := self.compression.model()) is not None:
            check_takes_up(model, query_length)
        return sizes

    @opaque
    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Number of tokens seen so far, padding included.

        Raises:
            CacheError: the last forward pass was not finished, so the layers differ in length.
        """
        if layer_idx == 0:
            self._check_finished()  # generate() cuts its input by it
        length: int = super().get_seq_length(layer_idx)
        return length

    @opaque
    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Same as in transformers; for full-attention layers, the attention function completes the update.

        Raises:
            CacheError: a step over tokens in the cache needs gradients, the last forward pass was not finished, or the
                model has another shape.
        """
        if layer_idx >= len(self.layers):
            raise CacheError(
                f"the model has a layer {layer_idx}, but this cache has {len(self.layers)} layers: it belongs to "
                "another model. Make one CompressedCache per model."
            )
        layer = self.layers[layer_idx]
        if isinstance(layer, CompressedLayer):
            return layer.update(key_states, value_states, *args, **kwargs)
        progress, part, mark = self.compression.progress, Part("sliding", layer_idx), None
        if layer.get_seq_length():
            check_no_gradients(key_states, value_states)
        slides = type(layer) is CompactSlidingLayer  # a linear state beside it cannot be put back
        decoding = slides and self._is_decoding()
        if decoding and layer.awaits(key_states, self.compression.on_trial) and notes_arrive(self.compression.model()):
            progress.enter(part)
            progress.before[part] = layer.mark()
            leave(layer, progress, key_states)
            return key_states, value_states
        if decoding:
            refuse_recording("a sliding window that lies in its order")
            layer.lay_in_order()
        progress.enter(part)
        if decoding:
            progress.before[part] = mark = layer.mark()
        keys, values = super().update(key_states, value_states, layer_idx, *args, **kwargs)
        if mark is not None:
            progress.before[part] = layer.shorten(mark, key_states.shape[-2])
        if slides and (model := self.compression.model()) is not None and not notes_arrive(model):
            try_notes(model, keys)
        progress.leave()
        return keys, values

    def has_previous_state(self, layer_idx: int | None = None, state_idx: int | None = None) -> bool:
        """Same as in transformers. A linear layer that asks about itself is about to change its state in place."""
        if layer_idx is not None:
            self._touch_linear(layer_idx)
        found: bool = super().has_previous_state(layer_idx, state_idx)
        return found

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        """Same as in transformers, for the model to change in place."""
        self._touch_linear(layer_idx)
        state: Tensor | None = super().get_conv_state(layer_idx, state_idx)
        return state

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        """Same as in transformers, for the model to change in place."""
        self._touch_linear(layer_idx)
        state: Tensor | None = super().get_recurrent_state(layer_idx, state_idx)
        return state

    def update_conv_state(self, conv_states: Tensor, layer_idx: int, state_idx: int = 0, **kwargs: Any) -> Tensor:
        """Same as in transformers."""
        self._touch_linear(layer_idx)
        state: Tensor = super().update_conv_state(conv_states, layer_idx, state_idx, **kwargs)
        settle_state(self.layers[layer_idx].conv_states, state_idx)
        return state

    def update_recurrent_state(
        self, recurrent_states: Tensor, layer_idx: int, state_idx: int = 0, **kwargs: Any
    ) -> Tensor:
        """Same as in transformers."""
        self._touch_linear(layer_idx)
        state: Tensor = super().update_recurrent_state(recurrent_states, layer_idx, state_idx, **kwargs)
        settle_state(self.layers[layer_idx].recurrent_states, state_idx)
        return state

    def take_back_unfinished(self) -> None:
        """Removes the tokens of a forward pass over compressed prompts that an error or an interrupt ended early.

        The cache is then as it was before that pass, so the pass can be repeated. Nothing happens if the last pass
        reached all layers: `get_seq_length` says whether the cache holds its tokens, and `crop` removes them.

        Raises:
            CacheError: the pass was that of the prompt itself, or it reached linear layers and overwrote their states.
        """
        progress = self.compression.progress
        if progress.is_whole():
            return
        progress.check_reversible()
        ours = self.compressed_layers()
        for part in progress.reached():
            layer = ours[part.layer] if part.kind == "full" else self.layers[part.layer]
            layer.take_back(progress.before[part])
        if len({(layer.waiting, layer.tail and layer.tail.longest) for layer in ours}) > 1:
            # The pass began with folding, or with compressing; those that it reached are through with that.
            for each in ours:
                each.settle()
        progress.withdraw_all()

    def _check_linear_gradients(self) -> None:
        """Refuses gradients before any linear state, which could not be put back, is changed."""
        model = self.compression.model()
        if self._has_linear and torch.is_grad_enabled() and model is not None and self.compressed_layers()[0].seen:
            check_no_gradients(*model.parameters())

    def _compress_waiting(self) -> None:
        """Compresses a prompt that waits before its first layer is asked, where that one's slots depend on the last."""
        if self.compression.spans_layers and not self.compression.defer:
            for layer in self.compressed_layers():
                if layer.waiting:
                    layer.compress_waiting()

    def _touch_linear(self, layer_idx: int) -> None:
        self.compression.progress.touch(Part("linear", layer_idx))

    def _is_decoding(self) -> bool:
        first = self.compressed_layers()[0]
        return first.compressed or first.waiting

    def _check_whole(self) -> None:
        """Raises CacheError unless all layers hold the same tokens."""
        self._check_finished()
        ours = self.compressed_layers()
        if any(layer.seen != ours[0].seen for layer in ours):
            raise CacheError(
                f"the layers of this cache hold different numbers of tokens, {[layer.seen for layer in ours]}: they "
                "were changed one by one. Start again from the prompt with a new CompressedCache, and change layers "
                "only through the cache."
            )

    def _check_finished(self) -> None:
        progress = self.compression.progress
        if progress.is_whole():
            return
        if any(layer.pending is not None and not layer.pending.taken for layer in self.compressed_layers()):
            raise progress.bypassed()
        progress.check()

    def _check_together(self) -> None:
        """Raises CacheError where layers wait for others to be compressed, as that was interrupted."""
        if self.compression.together.waiting:
            raise CacheError(
                "the compression of this prompt was interrupted before layers that share slots got theirs. Continue "
                "with the next tokens, which finish it, or start again from the prompt with a new CompressedCache."
            )

    # --- rows and lengths ----------------------------------------------------------------------------------

    def crop(self, tokens_to_remove: int) -> None:
        """Removes the last tokens of every row: -n removes n tokens; n keeps the first n.

        Raises:
            CacheError: these tokens are compressed, or a sliding or linear layer no longer has its earlier state. The
                cache is then unchanged.
        """
        self._check_whole()
        tokens_to_remove = int(tokens_to_remove)  # older releases give a tensor, which the next tokens would change
        if tokens_to_remove > 0:
            tokens_to_remove = min(0, tokens_to_remove - self.get_seq_length())
        if not tokens_to_remove and not any(layer.recording or layer.waiting for layer in self.compressed_layers()):
            return  # sliding layers would refuse to do nothing
        for layer in self.layers:
            check_crop(layer, -tokens_to_remove)
        with self.compression.progress.changing():
            super().crop(tokens_to_remove)

    def dense_tokens(self) -> int:
        """Tokens behind the prefix of the row that has most."""
        tail = self.compressed_layers()[0].tail
        return 0 if tail is None else tail.longest

    def end_trial(self, wrong: int, states: Callable[[], object] | None = None) -> None:
        """Takes back the last `wrong` tokens of a pass that was on trial (see `Trial`).

        states: puts linear states back, in the same change; None leaves them. Raises CacheError where the pass was
        broken off.
        """
        self._check_whole()
        with self.compression.progress.changing():
            for layer in self.compressed_layers():
                layer.end_trial(wrong)
            for window in self.sliding_layers():
                window.end_trial(wrong)
            if states is not None:
                states()

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Reorders the rows: row i becomes what row beam_idx[i] was."""
        with self.compression.progress.changing(), writable():
            # Brought to the host once; every layer looks at it.
            super().reorder_cache(beam_idx.cpu())

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeats every row `repeats` times."""
        self.reorder_cache(self._row_numbers().repeat_interleave(repeats))

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keeps only the rows `indices` (integers or a boolean mask)."""
        self.reorder_cache(self._row_numbers()[indices.cpu()])

    def _row_numbers(self) -> Tensor:
        """[R] int64 on the CPU. Layers with a linear state know no way to other rows but a new order of them."""
        return torch.arange(len(self.compressed_layers()[0].prefixes), device="cpu")

    def reset(self) -> None:
        """Empties the cache."""
        super().reset()
        self.compression.reset()

    def is_attention_alone(self) -> bool:
        """True if all layers have full attention: sliding and linear layers keep a state of their own."""
        return all(map(is_attention_alone, self.layers))

    def may_be_joined(self) -> bool:
        """True if rows of other caches may stand beside those of this one once all prompts are compressed.

        Sliding windows may be those of single rows on a CPU, unless padding is in them, they are chunks, or they lie
        beside a linear state.
        """
        windows = self.sliding_layers()
        rings = not windows or notes_arrive(self.compression.model())
        return self.holds_rows_alone() and rings and all(layer.is_joinable() for layer in windows)

    def holds_rows_alone(self) -> bool:
        """True if all that layers hold is prefixes, tails, linear states, and windows of which a token sees all."""
        windows = self.sliding_layers()
        holders = filter(holds_state, self.layers)
        alone = all(is_of_rows(layer) or layer in windows for layer in holders)
        return alone and self.windows_hide_nothing()

    def sliding_layers(self) -> list[CompactSlidingLayer]:
        """Layers whose windows move in place while single tokens come."""
        return [layer for layer in self.layers if type(layer) is CompactSlidingLayer]

    def windows_hide_nothing(self) -> bool:
        """True if a token sees all of every sliding window: no padding, and no chunks, which end at other places."""
        windows = self.sliding_layers()
        if not windows:
            return True
        if "chunked_attention" in (getattr(self.config, "layer_types", None) or ()):
            return False
        if all(layer.ring is not None for layer in windows):
            return True  # rings take tokens that see all of them, and none that are padding
        first = self.compressed_layers()[0]
        return all(held == first.seen for held in first.held_tokens())

    # --- what is held --------------------------------------------------------------------------------------

    def kept(self, layer: int, row: int = 0) -> list[Tensor]:
        """Kept positions of one row, those of folded tokens included: one ascending int64 tensor for every KV head.

        Positions count without padding.

        Args:
            layer: index of the layer in the model.
            row: index of the sequence in the batch.

        Raises:
            CacheError: the layer has no full attention, there is no such row, or nothing was compressed yet.
        """
        chosen = self.layers[layer] if -len(self.layers) <= layer < len(self.layers) else None
        if not isinstance(chosen, CompressedLayer):
            full = [index for index, each in enumerate(self.layers) if isinstance(each, CompressedLayer)]
            raise CacheError(f"layer {layer} is not a compressed layer of this model; those are {full}.")
        if not chosen.compressed:
            raise CacheError("nothing was compressed yet; run the prompt through the model first.")
        self._check_finished()
        self._check_together()
        if not 0 <= row < len(chosen.prefixes):
            raise CacheError(f"there is no row {row}; the cache holds {len(chosen.prefixes)} rows.")
        return chosen.kept(row)

    def stats(self) -> CacheStats:
        """Statistics of what the cache holds now, counted from its tensors.

        Raises:
            CacheError: the last forward pass was not finished.
        """
        self._check_whole()
        self._check_together()
        ours = self.compressed_layers()
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

    def __repr__(self) -> str:
        try:
            stats = self.stats()
        except CacheError:
            return f"CompressedCache({self.method}, in a forward pass or after one that was not finished)"
        return (
            f"CompressedCache({self.method}, tokens seen: {stats.tokens_seen:,}, rows: {stats.rows}, "
            f"held: {readable_bytes(stats.held_bytes)} of {readable_bytes(stats.full_bytes)})"
        )

    def __copy__(self) -> CompressedCache:
        raise CacheError(
            "a shallow copy would share later tokens with its original; fork the cache with copy.deepcopy, which "
            "shares only what is compressed."
        )

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise CacheError(NOT_PICKLED)

    def __deepcopy__(self, memo: dict[int, Any]) -> CompressedCache:
        twin = self.__class__.__new__(self.__class__)
        memo[id(self)] = twin
        for name, value in self.__dict__.items():
            twin.__dict__[name] = value if name == "config" else deepcopy(value, memo)
        return twin

    def __del__(self) -> None:
        # A layer that waits for the end of a forward pass is referred to by what it waits with. Where that pass failed,
        # all that is held would stay until Python collects cycles, which a service may do next to never.
        for layer in self.__dict__.get("layers", ()):
            if getattr(layer, "pending", None) is not None:
                layer.let_go()

    def _is_joinable(self) -> bool:
        """True if rows of all layers can be told apart by their lengths."""
        self._check_whole()
        return self.may_be_joined() and all(layer.is_joinable() for layer in self.compressed_layers())

    def _bytes_of_stock_layers(self) -> int:
        tensors: list[Tensor | None] = []
        for layer in self.layers:
            if isinstance(layer, CompactSlidingLayer):
                tensors += layer.tensors()
            elif not isinstance(layer, CompressedLayer):
                tensors += [getattr(layer, "keys", None), getattr(layer, "values", None)]
        for layer in self.layers:
            for states in ("conv_states", "recurrent_states"):
                tensors += list(getattr(layer, states, {}).values())
        return storage_bytes(tensors)
