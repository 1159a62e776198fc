"""Contexts as files: what is written of one, and how it becomes a cache again.

One safetensors file (`cache/container.py`): every tensor of the cache under its layer's number, and facts about model,
tokenizer, method and layers in the header. Prefixes are used where the file is mapped, so processes that load the same
file share its pages. docs/contexts.md has the format.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from winnow.cache.compressed import CompressedCache
from winnow.cache.container import Container, write_container
from winnow.cache.fingerprint import ModelFingerprint, check_tokenizer, hash_tokenizer
from winnow.cache.layer_state import LayerState, restore, state_of
from winnow.cache.recorded import describe, recorded
from winnow.errors import CacheError

IDS, DOCUMENT = "input_ids", "document"


@dataclass(frozen=True)
class ContextFile:
    """A context on disk. Opening it checks the header; tensors are read when they are used."""

    container: Container

    @classmethod
    def open(cls, path: Path | str) -> ContextFile:
        """Raises CacheError for what is no context, of a newer version, cut off or with a changed header."""
        return cls(Container.open(Path(path)))

    def verify(self) -> None:
        """Reads the whole file. Raises CacheError where anything in it was changed."""
        self.container.verify()

    @property
    def model(self) -> ModelFingerprint:
        """The model that it was made with, and that reads it."""
        return ModelFingerprint(**self.container.facts["model"])

    @property
    def has_tokenizer(self) -> bool:
        """True if the file says which tokenizer made its tokens."""
        return self.container.facts["tokenizer"] is not None

    @property
    def nbytes(self) -> int:
        """Size of the file."""
        return self.container.path.stat().st_size

    @property
    def input_ids(self) -> Tensor:
        """[R, N] the tokens it was made from."""
        return self._tensors[IDS]

    @property
    def document(self) -> str | None:
        """The text it was made from, where that was saved with it."""
        text = self._tensors.get(DOCUMENT)
        return None if text is None else text.numpy().tobytes().decode("utf-8")

    def check_tokenizer(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """Raises CacheError for another tokenizer than the one that was saved with it, if one was."""
        check_tokenizer(self.container.facts["tokenizer"], tokenizer, str(self.container.path))

    def check_config(self, config: PreTrainedConfig) -> None:
        """Raises CacheError for a model of another shape, before its weights are loaded."""
        self.model.check_config(config, str(self.container.path))

    def cache(self, model: PreTrainedModel) -> CompressedCache:
        """The cache as it was saved, on the model's device; on a CPU its prefixes are views of the file.

        Raises CacheError for another model, other weights or another dtype.
        """
        self.model.check(model, str(self.container.path))
        try:
            return self._cache(model)
        except (KeyError, TypeError, ValueError, IndexError) as problem:
            # Only where verify() was left out, or the file is of a store that this version does not have.
            raise CacheError(f"{self.container.path} cannot be read back ({problem!r}): verify it.") from problem

    def _cache(self, model: PreTrainedModel) -> CompressedCache:
        facts = self.container.facts
        described = facts["layers"]
        cache = CompressedCache(
            model,
            recorded(facts["method"]),
            prompt_length=facts["tokens"],
            heads_per_layer=[layer["full"]["heads"] for layer in described if "full" in layer],
        )
        for index, (layer, told) in enumerate(zip(cache.layers, described, strict=True)):
            start = f"layers.{index}."
            own = {name.removeprefix(start): part for name, part in self._tensors.items() if name.startswith(start)}
            restore(layer, LayerState(told, own), model.device)
        cache.compression.seconds = facts["stats"]["compress_seconds"]
        return cache

    @cached_property
    def _tensors(self) -> dict[str, Tensor]:
        return self.container.tensors()


def write_context(
    path: Path | str,
    cache: CompressedCache,
    input_ids: Tensor,
    tokenizer: PreTrainedTokenizerBase | None,
    document: str | None,
    overwrite: bool,
) -> Path:
    """Writes a cache right after its prompt [R, N] was compressed; see `Context.save`."""
    model = cache.compression.model()
    if model is None:
        raise CacheError("the model of this context is gone; save the context while its model is there.")
    states = [state_of(layer) for layer in cache.layers]
    facts = {
        "model": asdict(ModelFingerprint.of(model)),
        "tokenizer": None if tokenizer is None else hash_tokenizer(tokenizer),
        "method": describe(cache.method),
        "stats": asdict(cache.stats()),
        "tokens": cache.get_seq_length(),
        "layers": [state.facts for state in states],
    }
    tensors = _named(states) | {IDS: input_ids}
    if document is not None:
        tensors[DOCUMENT] = torch.frombuffer(bytearray(document.encode("utf-8")), dtype=torch.uint8)
    return write_container(Path(path), facts, tensors, overwrite)


def _named(states: list[LayerState]) -> dict[str, Any]:
    return {
        f"layers.{index}.{name}": tensor for index, state in enumerate(states) for name, tensor in state.tensors.items()
    }
