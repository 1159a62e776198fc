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
from winnow.models.adapters import without_wrappers
from winnow.models.devices import input_device
from winnow.models.kinds import counts_anew, starts_anew
from winnow.models.last_logits import last_only


class Context:
    """The compressed prefill of a prompt. It is never written to again; `cache()` forks it."""

    def __init__(
        self,
        cache: CompressedCache,
        input_ids: Tensor,
        position_offsets: Tensor | None = None,
        made: MadeFacts | None = None,
    ) -> None:
        """A context of a cache right after its prompt was compressed.

        Args:
            position_offsets: int64 [R, 1], of models that keep them for prompts with images.
            made: of a context from a file.
        """
        self._cache = cache
        self.input_ids = input_ids
        """[R, N] the tokens it was made from; put them before the question's for `model.generate`."""
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
        """The method that compressed it; one from a file knows its name and budget only."""
        return self._cache.method

    def cache(self) -> CompressedCache:
        """A cache that starts from this context and shares its prefix memory; its own tail is private.

        A model that keeps the offsets of positions behind images (Qwen-VL) is given those of this context: use the
        cache before the model reads another prompt.
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
        """Writes a safetensors file that `load_context` reads, in any process that has the same model.

        An interrupted or failed write leaves nothing behind, a killed process a hidden `.winnow-….part` beside the
        target, which may be deleted. What is read back does not fold (`fold_every`, `fold_turns`): queries are not
        written.

        Args:
            tokenizer: what made the tokens; loading can then check it.
            document: the text of the prompt's document, which `winnow ask` needs to put questions behind it.
            prompt: how the document was put into its prompt, where that was not as usual: `PromptStyle.facts()`.
            overwrite: replace a file of this name.

        Raises:
            CacheError: the file exists or cannot be written; the model is gone; a layer, or a text, that cannot be
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
    """Prefills input_ids [R, N] once and compresses them, with no question in sight.

    Args:
        method: from `winnow.method(name, budget=...)`, or its text: "adakv @ 5%".
        attention_mask: [R, N], 0 for padding on the left. Positions count without padding, as `model.generate` counts
            them, unless `position_ids` say otherwise.
        chunk_size: prefill in chunks of so many tokens: less working memory, but every layer's dense keys and values
            are alive until the last chunk.
        fold_every, fold_turns: of the caches that start from the context; see `CompressedCache`.
        observer: sees every row of every layer right after its compression.
        tokenizer: the model's, for methods that have it repeat the prompt (kvzip) and say so in words. Every layer's
            dense keys and values are alive until it did.
        inputs: passed to the model with the prompt: images (pixel values), and with every chunk what is no tensor
            (`adapter_names`). Of `position_ids` [..., N] each chunk has its part.

    Raises:
        CacheError: an empty prompt; a chunk_size that is no number of tokens, or one that parts a prompt with images;
            input_ids that are no tensor; an attention implementation that is not "winnow"; an argument of the model's
            that is given to it anyway (use_cache, past_key_values); a model that takes no question behind a context.
        MethodError: a method that cannot fold, where fold_every or fold_turns is given; one that has the prompt
            repeated, without a tokenizer, or where prompt and chunk are longer than the model reads.
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
                past_key_values=cache,
                use_cache=True,
                **placed,
                **inputs,
            )
    check_taken_up(cache.get_seq_length(), length)
    if replayer is not None:
        cache = cache.compressed_by(method, replayed=replay(cache, input_ids, replayer, tokenizer))
    return Context(cache, input_ids, offsets_of(model))


def _check_own(inputs: Mapping[str, Any]) -> None:
    """Raises CacheError for arguments of a forward pass that `compress` gives itself."""
    for name in ("past_key_values", "use_cache"):
        if name in inputs:
            raise CacheError(f"compress makes the cache of a context by itself; leave {name} out.")


def _check_repeatable(method: Method, tokenizer: Words | None, inputs: Mapping[str, Any]) -> None:
    """Raises MethodError for a method that has the prompt repeated, without words or with more than tokens."""
    if method.scorer.replayer is None:
        return
    words_of(tokenizer, method.scorer.replayer)
    if inputs:
        raise MethodError(
            f"{method} has the model repeat its prompt token by token, without {', '.join(inputs)}; use a method that "
            "reads it once."
        )


def _check_read_at_once(inputs: Mapping[str, Any], chunk: int, length: int) -> None:
    """Raises CacheError where a prompt with images is to be read in chunks: each would get them all."""
    found = _tensors(inputs)
    if found and chunk < length:
        raise CacheError(
            f"{', '.join(found)} came with a prompt in chunks: images, and all else that comes as tensors, belong to a "
            "prompt that is read at once; leave chunk_size out."
        )


def _positions(model: PreTrainedModel, input_ids: Tensor, mask: Tensor | None, inputs: dict[str, Any]) -> Tensor | None:
    """[..., N] positions of a prompt's tokens, out of `inputs` or by the mask; None where the model counts them.

    By the mask as `model.generate` has it for what follows: without padding.
    """
    given: Tensor | None = inputs.pop("position_ids", None)
    if given is None and mask is None and counts_anew(model.config):
        return torch.arange(input_ids.shape[1], device=input_ids.device)[None]
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
    """A context that `Context.save` wrote. On a CPU it is used where the file is mapped: processes share its pages.

    Args:
        model: the one that made it, after `model.set_attn_implementation("winnow")`, in the same dtype.
        tokenizer: checked against the one that was saved with it, if one was.
        verify: compare a checksum of the whole file, two to three seconds per GiB. Otherwise only the header and the
            length are checked, and content is read when it is first used.

    Raises:
        CacheError: no context, a newer format, cut off or changed; another model, dtype or tokenizer.
    """
    file = ContextFile.open(path)
    if tokenizer is not None:
        file.check_tokenizer(tokenizer)
    if verify:
        file.verify()
    ids = file.input_ids.to(input_device(model))
    return Context(file.cache(model), ids, file.position_offsets, file.facts.made)
