"""A document, compressed once, for any number of questions."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any, NoReturn, SupportsIndex

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from winnow.cache.compressed import NOT_PICKLED, CompressedCache
from winnow.cache.disk import Content, ContextFile, write_context
from winnow.cache.facts import MadeFacts
from winnow.cache.guards import begun_anew, check_model, optional_count, text_config
from winnow.cache.left_out import check_taken_up
from winnow.cache.observer import Observer
from winnow.cache.position_offsets import keeps_offsets, offsets_of, set_offsets
from winnow.cache.replay import Words, replay, words_of
from winnow.cache.stats import CacheStats
from winnow.composition.method import Method
from winnow.composition.names import as_method
from winnow.errors import CacheError, MethodError
from winnow.heap import give_back_after
from winnow.models.adapters import without_wrappers
from winnow.models.cache_argument import CACHE_NAMES, with_cache
from winnow.models.devices import input_device
from winnow.models.kinds import counts_anew, starts_anew
from winnow.models.last_logits import last_only
from winnow.models.positions import positions_from


class Context:
    """A prompt's compressed prefill. It never changes; `cache()` makes caches that start from it."""

    def __init__(
        self,
        cache: CompressedCache,
        input_ids: Tensor,
        position_offsets: Tensor | None = None,
        made: MadeFacts | None = None,
    ) -> None:
        """A context of a cache right after its prompt was compressed. `compress` and `load_context` make them.

        Args:
            cache: the cache. It must not change any more.
            input_ids: [R, N] tokens of the prompt.
            position_offsets: int64 [R, 1], for models that keep them for prompts with images.
            made: facts from a file, for a context that comes from one.
        """
        self._cache = cache
        self.input_ids = input_ids
        """[R, N] tokens that the context was made from. For `model.generate`, put them before the question's tokens."""
        self._position_offsets = position_offsets
        self._made = made

    def __copy__(self) -> Context:
        # It is never written to again, so copies may share everything.
        return Context(self._cache, self.input_ids, self._position_offsets, self._made)

    def __deepcopy__(self, memo: dict[int, Any]) -> Context:
        offsets = deepcopy(self._position_offsets, memo)
        return Context(deepcopy(self._cache, memo), deepcopy(self.input_ids, memo), offsets, self._made)

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise CacheError(NOT_PICKLED)

    @property
    def method(self) -> Method:
        """The method that compressed the context. If it comes from a file, it knows only its name and budget."""
        return self._cache.method

    def cache(self) -> CompressedCache:
        """A cache that starts from this context. It shares the context's memory and has a tail of its own.

        A model that keeps position offsets for images (Qwen-VL) is set to those of this context, so use the cache
        before the model reads another prompt.
        """
        model = self._cache.compression.model()
        if model is not None:
            set_offsets(model, self._position_offsets)
        return deepcopy(self._cache)

    def kept(self, layer: int, row: int = 0) -> list[Tensor]:
        """Kept positions per KV head; see `CompressedCache.kept`."""
        return self._cache.kept(layer, row)

    def stats(self) -> CacheStats:
        """Statistics of the context itself; see `CompressedCache.stats`."""
        return self._cache.stats()

    def save(
        self,
        path: Path | str,
        *,
        tokenizer: PreTrainedTokenizerBase | None = None,
        document: str | None = None,
        prompt: Mapping[str, Any] | None = None,
        overwrite: bool = False,
    ) -> Path:
        """Writes a safetensors file that `load_context` reads, in any process with the same model.

        An interrupted or failed write leaves nothing behind. A killed process leaves a hidden `.winnow-….part` file
        next to the target, which may be deleted. A context that is read back does not fold (`fold_every`,
        `fold_turns`), because queries are not written.

        Args:
            path: the file to write.
            tokenizer: the tokenizer that made the tokens, so that loading can check it.
            document: text of the prompt's document. `winnow ask` needs it to add questions.
            prompt: `PromptStyle.facts()` of the style that made the prompt, unless it was the default one.
            overwrite: replace an existing file.

        Raises:
            ContextError: the file exists or cannot be written, the model no longer exists, or a layer or text cannot be
                written.
            ModelError: the model's weights are offloaded.
        """
        content = Content(self._cache, self.input_ids, self._position_offsets, document, self._made)
        return write_context(path, content, tokenizer, prompt or {}, overwrite)


def compress(
    model: PreTrainedModel,
    input_ids: Tensor,
    method: Method | str,
    *,
    attention_mask: Tensor | None = None,
    chunk_size: int | None = None,
    fold_every: int | None = None,
    fold_turns: int | None = None,
    observer: Observer | None = None,
    tokenizer: Words | None = None,
    **inputs: Any,
) -> Context:
    """Prefills input_ids [R, N] once and compresses them, before any question is known.

    Args:
        model: a decoder-only model, after `model.set_attn_implementation("winnow")`.
        input_ids: [R, N] tokens of the prompt.
        method: the result of `winnow.method(name, budget=...)`, or its text: "adakv @ 5%".
        attention_mask: [R, N], 0 for padding on the left. Positions count without padding, as in `model.generate`,
            unless `position_ids` are given.
        chunk_size: prefill this many tokens at a time. This needs less working memory, but keeps every layer's dense
            keys and values until the last chunk.
        fold_every, fold_turns: for the caches that start from the context; see `CompressedCache`.
        observer: an object that sees every row of every layer right after its compression.
        tokenizer: the model's tokenizer, for methods that ask the model to repeat the prompt (kvzip). Every layer's
            dense keys and values are kept until the model has done so.
        inputs: further arguments of the model. Tensors (pixel values of images) come with the whole prompt; other
            values (`adapter_names`) come with every chunk. `position_ids` [..., N] are divided among the chunks.

    Raises:
        CacheError: the prompt is empty; input_ids is not a tensor; chunk_size is not a number of tokens, or divides a
            prompt with images; the attention implementation is not "winnow"; `compress` sets an argument itself
            (use_cache, cache); or the model cannot take a question after a context.
        MethodError: fold_every or fold_turns is given and the method cannot fold; or the method has the prompt
            repeated, and there is no tokenizer, or prompt and chunk are longer than the model can read.
        ModelError: as for `CompressedCache`.
    """
    check_model(model)
    if starts_anew(model.config):
        raise begun_anew(text_config(model))
    if not isinstance(input_ids, Tensor):
        raise CacheError(
            f"input_ids is a {type(input_ids).__name__}; give a tensor [rows, tokens], as a tokenizer's "
            'return_tensors="pt" makes it: winnow.compress(model, input_ids, method).'
        )
    if input_ids.dim() != 2 or input_ids.shape[1] == 0:
        raise CacheError(f"input_ids has shape {list(input_ids.shape)}; give [rows, tokens] with at least one token.")
    chunk_size = optional_count("chunk_size", chunk_size, "tokens that are prefilled at a time")
    length, method = input_ids.shape[1], as_method(method)
    replayer = method.scorer.replayer
    _check_own(inputs)
    _check_repeatable(method, tokenizer, inputs)
    _check_read_at_once(inputs, chunk_size or length, length)
    positions = _positions(model, input_ids, attention_mask, inputs)
    shown = 0 if observer is None else observer.queries
    cache = CompressedCache(
        model,
        method,
        prompt_length=length,
        fold_every=fold_every,
        fold_turns=fold_turns,
        defer=replayer is not None,
        waiting_queries=max(1, shown, method.queries_needed(length)),
        observer=observer,
    )
    inputs |= last_only(model)
    set_offsets(model, None)  # those of an earlier prompt
    with torch.no_grad():
        for start in range(0, length, chunk_size or length):
            stop = min(start + (chunk_size or length), length)
            mask = None if attention_mask is None else attention_mask[:, :stop]
            placed = {} if positions is None else {"position_ids": positions[..., start:stop]}
            model(
                input_ids=input_ids[:, start:stop],
                attention_mask=mask,
                **with_cache(model, cache),
                **placed,
                **inputs,
            )
    check_taken_up(cache.get_seq_length(), length)
    if replayer is not None:
        cache = cache.compressed_by(method, replayed=replay(cache, input_ids, replayer, tokenizer))
    give_back_after(input_ids.numel(), input_ids.device)
    return Context(cache, input_ids, offsets_of(model))


def _check_own(inputs: Mapping[str, Any]) -> None:
    """Raises CacheError for arguments of a forward pass that `compress` gives itself."""
    for name in (*CACHE_NAMES, "use_cache"):
        if name in inputs:
            raise CacheError(f"winnow.compress makes the cache itself; leave {name} out.")


def _check_repeatable(method: Method, tokenizer: Words | None, inputs: Mapping[str, Any]) -> None:
    """Raises MethodError for a method that has the prompt repeated, without words or with more than tokens."""
    if method.scorer.replayer is None:
        return
    words_of(tokenizer, method.scorer.replayer)
    if inputs:
        raise MethodError(
            f"{method} has the model repeat its prompt from tokens alone, without {', '.join(inputs)}; use a method "
            "that reads the prompt once."
        )


def _check_read_at_once(inputs: Mapping[str, Any], chunk: int, length: int) -> None:
    """Raises CacheError where a prompt with images is to be read in chunks: each would get them all."""
    found = _tensors(inputs)
    if found and chunk < length:
        raise CacheError(
            f"{', '.join(found)} cannot be divided into chunks: a prompt with images, or with other tensors, must be "
            "read at once; leave chunk_size out."
        )


def _positions(model: PreTrainedModel, input_ids: Tensor, mask: Tensor | None, inputs: dict[str, Any]) -> Tensor | None:
    """[..., N] positions of a prompt's tokens, out of `inputs` or by the mask; None where the model counts them.

    By the mask as `model.generate` has it for what follows: without padding.
    """
    given: Tensor | None = inputs.pop("position_ids", None)
    if given is None and mask is None and counts_anew(model.config):
        return positions_from(0, input_ids)
    if given is not None or mask is None or mask.dim() != 2:
        return given
    if "position_ids" not in inspect.signature(without_wrappers(model).forward).parameters:
        return None
    if keeps_offsets(model) and _tensors(inputs):
        return None  # it places what is behind images by these and the mask
    return (mask.to(input_ids.device, torch.int64).cumsum(1) - 1).clamp(min=0)


def _tensors(inputs: Mapping[str, Any]) -> list[str]:
    """Names of the inputs that a prompt has as a whole, besides its positions."""
    return [name for name, value in inputs.items() if name != "position_ids" and _holds_tensors(value)]


def _holds_tensors(value: Any) -> bool:
    return isinstance(value, Tensor) or (isinstance(value, list | tuple) and any(map(_holds_tensors, value)))


def load_context(
    path: Path | str,
    model: PreTrainedModel,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    verify: bool = True,
) -> Context:
    """Loads a context that `Context.save` wrote. On a CPU, the file is mapped into memory, which processes share.

    Args:
        path: the file.
        model: the model that made the context, in the same dtype, after `model.set_attn_implementation("winnow")`.
        tokenizer: a tokenizer to compare with the one that was saved with the context, if one was.
        verify: check the whole file against its checksum, which takes two to three seconds per GiB. Otherwise only
            header and length are checked, and the content is read when it is first used.

    Raises:
        ContextError: the file is not a context, has a newer format, is cut off or changed; or it belongs to another
            model, dtype or tokenizer.
    """
    file = ContextFile.open(path)
    if tokenizer is not None:
        file.check_tokenizer(tokenizer)
    if verify:
        file.verify()
    ids = file.input_ids.to(input_device(model))
    return Context(file.cache(model), ids, file.position_offsets, file.facts.made)
