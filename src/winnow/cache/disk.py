"""Contexts as files: what is written of one, and how it becomes a cache again.

One safetensors file (`cache/container.py`): every tensor of the cache under its layer's number, and facts about model,
tokenizer, method and layers in the header. Prefixes are used where the file is mapped, so processes that load the same
file share its pages. docs/contexts.md has the format.
"""

from __future__ import annotations

import json
import os.path
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.cache_utils import CacheLayerMixin

from winnow.cache.compressed import CompressedCache
from winnow.cache.container import Container, write_container
from winnow.cache.facts import ContextFacts, LayerFacts, MadeFacts
from winnow.cache.fingerprint import ModelFingerprint, check_tokenizer, hash_tokenizer
from winnow.cache.guards import check_model, text_config
from winnow.cache.layer_config import most_query_heads
from winnow.cache.layer_state import Expected, LayerState, restore, state_of, taken
from winnow.cache.placement import layer_devices
from winnow.cache.probe import check_stock_layers
from winnow.cache.recorded import RecordedScorer, describe, recorded
from winnow.errors import ContextError, ModelError
from winnow.models.devices import input_device
from winnow.typed import TypedError, read_as

IDS, DOCUMENT, OFFSETS = "input_ids", "document", "position_offsets"


@dataclass(frozen=True)
class ContextFile:
    """A context on disk. Opening it checks the header; tensors are read when they are used."""

    container: Container
    facts: ContextFacts

    @classmethod
    def open(cls, path: Path | str) -> ContextFile:
        """Raises ContextError for what is no context, of a newer version, cut off or with a changed header."""
        container = Container.open(_place(path))
        try:
            return cls(container, read_as(ContextFacts, container.facts))
        except TypedError as problem:
            raise _refused(container.path, problem) from None

    def verify(self) -> None:
        """Reads the whole file. Raises ContextError where anything in it was changed."""
        self.container.verify()

    @property
    def model(self) -> ModelFingerprint:
        """The model that it was made with, and that reads it."""
        return self.facts.model

    @property
    def has_tokenizer(self) -> bool:
        """True if the file says which tokenizer made its tokens."""
        return self.facts.tokenizer is not None

    @property
    def nbytes(self) -> int:
        """Size of the file."""
        return self.container.path.stat().st_size

    @property
    def input_ids(self) -> Tensor:
        """[R, N] the tokens it was made from. Raises ContextError where the file does not hold them."""
        ids = self._tensors.get(IDS)
        tokens = self.facts.tokens
        if ids is None or ids.dtype != torch.int64 or ids.ndim != 2 or ids.shape[1] != tokens or not len(ids):
            raise _refused(self.container.path, f"its tokens are not [rows, {tokens}]")
        if bool((ids < 0).any()):
            raise _refused(self.container.path, "a token is negative")
        return ids

    @property
    def position_offsets(self) -> Tensor | None:
        """int64 [R, 1] offsets of positions behind images, where the model keeps such; see `position_offsets.py`.

        Raises ContextError where they are none.
        """
        offsets = self._tensors.get(OFFSETS)
        if offsets is not None and (offsets.dtype != torch.int64 or offsets.shape != (len(self.input_ids), 1)):
            raise _refused(self.container.path, f"its position offsets are not [{len(self.input_ids)}, 1]")
        return offsets

    @property
    def document(self) -> str | None:
        """The text it was made from, where that was saved with it. Raises ContextError where that is no text."""
        text = self._tensors.get(DOCUMENT)
        if text is None:
            return None
        try:
            if text.dtype != torch.uint8 or text.ndim != 1:
                raise ValueError("no bytes")
            return text.numpy().tobytes().decode("utf-8")
        except ValueError:
            raise _refused(self.container.path, "its document is no UTF-8 text") from None

    @property
    def prompt(self) -> dict[str, Any]:
        """Facts about the words around the document, as they were given to `Context.save`."""
        return self.facts.prompt

    def check_tokenizer(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """Raises ContextError for another tokenizer than the one that was saved with it, if one was."""
        check_tokenizer(self.facts.tokenizer, tokenizer, str(self.container.path))

    def check_config(self, config: PreTrainedConfig) -> None:
        """Raises ContextError for a model of another shape, before its weights are loaded."""
        self.model.check_config(config, str(self.container.path))

    def cache(self, model: PreTrainedModel) -> CompressedCache:
        """The cache as it was saved, on the model's device; on a CPU its prefixes are views of the file.

        Raises ContextError for another model, other weights or another dtype, and for content that no context has;
        CacheError for a model that does not use winnow's attention function.
        """
        self.model.check(model, str(self.container.path))
        check_model(model)
        try:
            return self._cache(model)
        except (ContextError, ModelError, torch.OutOfMemoryError):
            raise
        except (ValueError, TypeError, RuntimeError) as problem:
            raise _refused(self.container.path, problem) from problem

    def _cache(self, model: PreTrainedModel) -> CompressedCache:
        facts, ids = self.facts, self.input_ids
        heads = [layer.full.heads for layer in facts.layers if layer.full is not None]
        most = most_query_heads(text_config(model))
        if max(heads, default=1) > most:
            raise ValueError(f"a layer has {max(heads)} KV heads and the model {most} attention heads")
        cache = CompressedCache(model, recorded(facts.method), prompt_length=facts.tokens, heads_per_layer=heads)
        if len(facts.layers) != len(cache.layers):
            raise ValueError(f"there are {len(facts.layers)} layers and the model has {len(cache.layers)}")
        expected = Expected(len(ids), facts.tokens, model.dtype, input_device(model))
        left = {name: tensor for name, tensor in self._tensors.items() if name not in (IDS, DOCUMENT, OFFSETS)}
        devices = layer_devices(model, len(cache.layers))
        for index, (layer, told) in enumerate(zip(cache.layers, facts.layers, strict=True)):
            state = LayerState(told, taken(f"layers.{index}", left))
            _restore(index, layer, state, expected._replace(device=devices[index]))
        check_stock_layers(model, cache.layers)
        if left:
            raise ValueError(f"there is a tensor {min(left)[:40]!r} that belongs nowhere")
        cache.compression.seconds = read_as(float, facts.stats.get("compress_seconds"), "stats.compress_seconds")
        return cache

    @cached_property
    def _tensors(self) -> dict[str, Tensor]:
        return self.container.tensors()


class Content(NamedTuple):
    """All that a context is, right after its prompt was compressed."""

    cache: CompressedCache
    input_ids: Tensor
    """[R, N]"""
    position_offsets: Tensor | None
    """int64 [R, 1]"""
    document: str | None
    made: MadeFacts | None = None
    """Facts that a context from a file brought along."""

    def tensors(self) -> dict[str, Tensor]:
        """Tensors that are written beside those of layers. Raises ContextError for a document that no file can hold."""
        found = {IDS: self.input_ids.to(torch.int64)}
        if self.position_offsets is not None and bool(self.position_offsets.any()):
            # Left out where there are none, so that earlier versions read the file.
            found[OFFSETS] = self.position_offsets
        if self.document is not None:
            found[DOCUMENT] = torch.frombuffer(bytearray(_encoded(self.document)), dtype=torch.uint8)
        return found


def write_context(
    path: Path | str,
    content: Content,
    tokenizer: PreTrainedTokenizerBase | None,
    prompt: Mapping[str, Any],
    overwrite: bool,
) -> Path:
    """Writes a context; see `Context.save`."""
    cache = content.cache
    model = cache.compression.model()
    if model is None:
        raise ContextError("the model of this context was deleted; save the context while its model exists.")
    states = [state_of(layer) for layer in cache.layers]
    facts = {
        "model": asdict(ModelFingerprint.of(model)),
        "tokenizer": None if tokenizer is None else hash_tokenizer(tokenizer),
        "method": asdict(describe(cache.method)),
        "stats": asdict(cache.stats()),
        "tokens": cache.get_seq_length(),
        "layers": [_written(state.facts) for state in states],
    }
    if not isinstance(prompt, Mapping):
        raise ContextError(f"prompt is a {type(prompt).__name__}; give the result of PromptStyle.facts().")
    if prompt:
        # Left out where there is nothing to say, so that earlier versions read the file.
        facts["prompt"] = dict(prompt)
    made = content.made or _made_here(cache)
    if made is not None:
        facts["made"] = asdict(made)
    _check_told(facts)
    return write_container(_place(path), facts, _named(states) | content.tensors(), overwrite)


def _made_here(cache: CompressedCache) -> MadeFacts | None:
    """Facts of a cache that was compressed in this process; one from a file was compressed nobody knows when."""
    return None if isinstance(cache.method.scorer, RecordedScorer) else MadeFacts.now()


def _check_told(facts: Mapping[str, Any]) -> None:
    """Raises ContextError for facts that no header could give back: what users say of a prompt, names of models."""
    try:
        json.dumps(facts, ensure_ascii=False, allow_nan=False).encode("utf-8")
    except (TypeError, ValueError) as problem:
        raise ContextError(f"the facts about this context cannot be written as JSON: {problem}.") from None


def _place(path: Path | str) -> Path:
    """A path, with the home folder in place of a ~ in front."""
    return Path(os.path.expanduser(path))


def _encoded(document: str) -> bytes:
    try:
        return document.encode("utf-8")
    except UnicodeEncodeError as problem:
        raise ContextError(
            f"character {problem.start} of the document is half a surrogate pair, which no file can hold; give text "
            "that was read as UTF-8."
        ) from None


def _restore(index: int, layer: CacheLayerMixin, state: LayerState, expected: Expected) -> None:
    try:
        restore(layer, state, expected)
    except ValueError as problem:
        raise ValueError(f"layer {index}: {problem}") from None


def _written(facts: LayerFacts) -> dict[str, Any]:
    """Facts of a layer, those parts that it has."""
    return {name: part for name, part in asdict(facts).items() if part is not None}


def _refused(path: Path, problem: object) -> ContextError:
    return ContextError(
        f"{path} is not a valid context ({problem}): it was damaged, or not made by Winnow. Copy it again, or compress "
        "the document again."
    )


def _named(states: list[LayerState]) -> dict[str, Any]:
    return {
        f"layers.{index}.{name}": tensor for index, state in enumerate(states) for name, tensor in state.tensors.items()
    }
