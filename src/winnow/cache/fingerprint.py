"""Fingerprints of the model and the tokenizer that a context belongs to, without reading all of the weights."""

from __future__ import annotations

import hashlib
import json
import os.path
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from winnow.bundled import NAME, is_bundled
from winnow.cache.guards import text_config
from winnow.cache.layer_config import fact_of
from winnow.errors import ContextError, ModelError
from winnow.models.dtypes import written_dtype
from winnow.models.weights import weights_of

SAMPLES = 64
"""Values of every weight tensor that count, at even distances from its first on."""

SIZES = (
    "model_type",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "hidden_size",
    "vocab_size",
)
"""Facts of a configuration that are the same before and after its weights are loaded."""

ATTENTION = (
    "rope_parameters",
    "partial_rotary_factor",
    "no_rope_layers",
    "layer_types",
    "sliding_window",
    "attention_chunk_size",
    "attn_logit_softcapping",
    "query_pre_attn_scalar",
    "attention_multiplier",
)
"""Further facts that decide how keys and values come about, and how they are attended to."""


@dataclass(frozen=True)
class ModelFingerprint:
    """Facts that a file keeps of its model. Equal for equal weights in any process and on any device; dtypes differ."""

    name: str
    """A hub name, a directory, a GGUF file, "winnow-bundled"; empty where the model came from a configuration alone."""
    dtype: str
    """Dtype of the weights: "bfloat16"."""
    architecture: dict[str, Any]
    weights: str
    """Hash over the names, shapes and dtypes of all parameters, and `SAMPLES` values of each."""
    quantized: str | None = None
    """Scheme of quantized weights ("int8", "gptq"); None for plain ones."""

    @classmethod
    def of(cls, model: PreTrainedModel) -> ModelFingerprint:
        """Raises ModelError where weights are offloaded, so that they cannot be looked at."""
        model = getattr(model, "_orig_mod", model)  # what torch.compile wraps
        architecture = _facts(text_config(model), SIZES + ATTENTION) | {"class": type(model).__name__}
        architecture |= _adapters(model)
        return cls(
            _portable(model.config.name_or_path),
            written_dtype(model.dtype),
            architecture,
            _hash_weights(model),
            weights_of(model),
        )

    def check_config(self, config: PreTrainedConfig, origin: str) -> None:
        """Raises ContextError unless a configuration has the sizes of the model which made `origin`, a file."""
        self._check_facts(_facts(config.get_text_config(decoder=True), SIZES), origin)

    def check(self, model: PreTrainedModel, origin: str) -> None:
        """Raises ContextError unless `model` is the one that `origin`, a file, was made with, in the same dtype."""
        found = ModelFingerprint.of(model)
        self._check_facts(found.architecture, origin)
        # Only to say why: files of earlier versions do not tell, and hashes do.
        if found.weights != self.weights and found.quantized != self.quantized:
            there, here = (each or "plain" for each in (self.quantized, found.quantized))
            raise ContextError(
                f"{origin} was made with {there} weights, but the model has {here} ones: load it with {there} weights, "
                "or compress the document again with this model."
            )
        if found.dtype != self.dtype:
            raise ContextError(
                f"{origin} holds {self.dtype}, but the model is loaded in {found.dtype}: load it with "
                f"dtype=torch.{self.dtype}, or compress the document again with this model."
            )
        if found.weights != self.weights:
            raise ContextError(
                f"{origin} was made with a model of the same shape but other weights{self._named()}: load that model "
                "(another fine-tune or revision does not read this context), or compress the document again."
            )

    def _check_facts(self, found: dict[str, Any], origin: str) -> None:
        differing = [name for name, value in found.items() if self.architecture.get(name) != value]
        if differing:
            listed = ", ".join(f"{name} {self.architecture.get(name)!r}, not {found[name]!r}" for name in differing)
            raise ContextError(f"{origin} was made with another model{self._named()}, with {listed}: load that model.")

    def _named(self) -> str:
        return f" ({self.name})" if self.name else ""


def hash_tokenizer(tokenizer: PreTrainedTokenizerBase) -> str:
    """A hash of how text becomes tokens and prompts: the serialized tokenizer and its chat template."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        cutting: Any = [type(tokenizer).__name__, sorted(tokenizer.get_vocab().items())]
    else:
        cutting = json.loads(backend.to_str())
        # Left behind by the last call that padded or truncated; no part of what the tokenizer is.
        cutting.pop("padding", None)
        cutting.pop("truncation", None)
    told = json.dumps([cutting, getattr(tokenizer, "chat_template", None)], sort_keys=True)
    return _digest(told.encode()).hexdigest()


def check_tokenizer(expected: str | None, tokenizer: PreTrainedTokenizerBase, origin: str) -> None:
    """Raises ContextError where `origin`, a file, names a tokenizer and it is another one."""
    if expected is not None and hash_tokenizer(tokenizer) != expected:
        raise ContextError(
            f"{origin} was made with another tokenizer, or another version or chat template of it, so its tokens would "
            "mean something else. Load the tokenizer that belongs to its model."
        )


def _adapters(model: nn.Module) -> dict[str, list[str]]:
    """The adapters that are active, where a model has layers with some: keys and values are other ones without."""
    adapted = [each for each in model.modules() if hasattr(each, "base_layer") and hasattr(each, "active_adapters")]
    in_use = [each for each in adapted if not getattr(each, "disable_adapters", False)]
    names = {str(name) for each in in_use for name in getattr(each, "active_adapters", ())}
    return {"adapters": sorted(names)} if adapted else {}


def _portable(name: str) -> str:
    """A name that leads to the same model from any working directory."""
    if is_bundled(name):
        return NAME
    return os.path.realpath(name) if name and os.path.exists(name) else name


def _facts(config: PreTrainedConfig, names: tuple[str, ...]) -> dict[str, Any]:
    """Named facts as they come back from JSON."""
    found = {name: fact_of(config, name) for name in names}
    return dict(json.loads(json.dumps(found, default=str)))


@torch.no_grad()
def _hash_weights(model: PreTrainedModel) -> str:
    digest = _digest()
    for name, parameter in model.named_parameters():
        if parameter.is_meta:
            raise ModelError(
                f"the weights of {name} are offloaded, so the model cannot be recognized: load it without offloading "
                "to save and load contexts."
            )
        digest.update(f"{name} {list(parameter.shape)} {parameter.dtype}\n".encode())
        for part in _plain_parts(parameter.detach()):
            digest.update(_sample(part).cpu().numpy().tobytes())
    return digest.hexdigest()


def _plain_parts(weight: Tensor) -> Iterator[Tensor]:
    """The tensors that a weight consists of: itself, or what a library's quantized one wraps, by name."""
    if not is_traceable_wrapper_subclass(weight):
        yield weight
        return
    names, _ = weight.__tensor_flatten__()
    for name in sorted(names):
        yield from _plain_parts(getattr(weight, name))


def _sample(weight: Tensor) -> Tensor:
    """Bytes of `SAMPLES` values, or of all where there are fewer."""
    flat = weight.reshape(-1)
    return flat[:: max(1, len(flat) // SAMPLES)][:SAMPLES].contiguous().view(torch.uint8)


def _digest(start: bytes = b"") -> hashlib.blake2b:
    return hashlib.blake2b(start, digest_size=32)
