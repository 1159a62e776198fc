"""Weights of fewer bits than the checkpoint's: which there are, where they work, and how a model gets them."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import torch
import transformers
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from winnow.errors import ModelError
from winnow.models.high_bits import HighBitsLinear
from winnow.models.int4 import Int4Linear, block_size
from winnow.models.int8 import Int8Embedding, Int8Linear
from winnow.models.quantized_experts import QuantizedExperts
from winnow.models.quantized_stack import QuantizedStack
from winnow.models.replacing import hooks_of, replace_layers
from winnow.models.roundable import STAYING, embeds_plainly, fewest_bits, holds_experts, is_linear
from winnow.models.rounding import RoundedWeights, Rounding
from winnow.models.source import ModelSource

WEIGHTS = ("auto", "int8", "int4", "gguf")
"""Names: the checkpoint's own weights; 8 bits, with a scale for every output; 4 bits, in groups of 32; the
4, 5 or 6 bits of a GGUF file as they are, and 8 where it has more, or kernels read no such weights."""
_UNPACKED = ("gguf",)
"""Schemes of files, not of the models that are made of them."""
_WRITTEN_OUT = {"mxfp4": "Mxfp4Config", "fp8": "FineGrainedFP8Config"}
"""Schemes whose weights transformers writes out as it reads them, if settings of a class of its own ask for it."""


def check_weights(weights: str, source: ModelSource, where: torch.device, spread: bool) -> None:
    """Raises ModelError for an unknown name, where a device has no kernel, and for what is quantized already.

    where: the model's device; spread: True if it is to lie on several.
    """
    if weights not in WEIGHTS:
        raise ModelError(f"There are no weights {weights!r}; use {', '.join(WEIGHTS)}.")
    came = scheme_of(source.config)
    if came == "torchao" and find_spec("torchao") is None:
        raise ModelError(f"The weights of {source.name} were quantized by torchao: pip install 'winnow-kv[quantized]'.")
    if weights == "auto":
        return
    if weights == "gguf" and not source.gguf:
        raise ModelError(f"--weights gguf is for GGUF files, and {source.name} is none; use int8 or int4.")
    if came and came not in _WRITTEN_OUT:
        raise ModelError(f"The weights of {source.name} are quantized already ({came}); leave --weights {weights} out.")
    if spread or where.type != "cpu":
        raise ModelError(
            f"--weights {weights} works on a single CPU; use --device cpu, or load the model in transformers with a "
            "quantization_config for your device and pass it to winnow."
        )
    if weights != "int8":
        block_size()


def written_out(config: PreTrainedConfig) -> Any:
    """Settings by which transformers writes out a checkpoint's weights as it reads them; None for plain ones."""
    kind = _WRITTEN_OUT.get(scheme_of(config) or "")
    return None if kind is None else getattr(transformers, kind)(dequantize=True)


def bits_of(weights: str) -> int:
    """The fewest bits that weights are rounded to, which those of a GGUF file that stay are not."""
    return 4 if weights == "int4" else 8


def quantize_weights(model: PreTrainedModel, weights: str) -> None:
    """Puts layers with fewer bits in place of a model's linear ones.

    Its output layer, its embedding and what latents are expanded with have 8 bits.

    weights: "int8" or "int4"; layers of a shape that 4 bits do not fit get 8. Experts that transformers keeps in one
    tensor become linear layers. All other layers stay, and those that have a forward of their own. "gguf" is of use for
    `load_model` alone, which reads the file, and else the same as "int8".

    Raises ModelError for adapters that are not merged, for weights that are offloaded, and where torch's kernel for 4
    bits is not known on this processor.
    """
    _check_layers(model)
    rounding = Rounding(bits_of(weights))
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    tied = head is not None and getattr(head, "weight", None) is getattr(embedding, "weight", None)

    def smaller(name: str, layer: nn.Module) -> nn.Module | None:
        if holds_experts(layer):
            return QuantizedExperts(layer, rounding)
        if not is_linear(layer) or name in STAYING:
            return None
        bits = 8 if layer is head else fewest_bits(name)
        made = rounding.layer(layer.weight, at_least=bits).with_bias(layer.bias)
        vars(made).update(hooks_of(layer))
        return made

    replace_layers(model, smaller)
    if embeds_plainly(embedding):
        _round_embedding(model, embedding, tied, rounding)
    left = next((name for name, each in model.named_parameters() if isinstance(each, RoundedWeights)), None)
    if left is not None:
        raise ModelError(
            f"{left} was rounded while it was read, and its layer has changed since: load the model without few bits, "
            "and pass it to quantize_weights."
        )


def _round_embedding(model: PreTrainedModel, embedding: nn.Embedding, tied: bool, rounding: Rounding) -> None:
    """Puts one of 8 bits in place of a model's embedding. tied: the output layer had its weight."""
    layer = model.get_output_embeddings() if tied else rounding.layer(embedding.weight, at_least=8)
    if isinstance(layer, Int8Linear):
        made = Int8Embedding(layer)
        vars(made).update(hooks_of(embedding))
        model.set_input_embeddings(made)


def _check_layers(model: PreTrainedModel) -> None:
    """Raises ModelError for adapters, which are written into weights later, and for weights that are not there."""
    for name, module in model.named_modules():
        if hasattr(module, "base_layer") or hasattr(module, "lora_A"):
            raise ModelError(f"The model has an adapter ({name}): merge the adapters first (merge_and_unload).")
    for name, parameter in model.named_parameters():
        if parameter.is_meta:
            raise ModelError(
                f"Some weights of the model are not in memory ({name}): load it without a device map, and quantize it "
                "before parts are offloaded."
            )


def scheme_of(config: PreTrainedConfig) -> str | None:
    """The scheme of a checkpoint that is quantized already ("gptq"), or None."""
    found = getattr(config, "quantization_config", None)
    if found is None:
        found = getattr(config.get_text_config(decoder=True), "quantization_config", None)
    if found is None:
        return None
    method = found.get("quant_method") if isinstance(found, dict) else getattr(found, "quant_method", None)
    scheme = str(getattr(method, "value", method) or "of an unknown kind")
    return None if scheme in _UNPACKED else scheme


def weights_of(model: PreTrainedModel) -> str | None:
    """The scheme of a model's weights: "int8", "int4" or "gguf", that of a checkpoint or of a library; None for plain.

    "gguf" has more bits where "int4" would have 4, or levels of 5 or 6; a file of other weights alone gives the same as
    one of the others.
    """
    head, kinds, larger = model.get_output_embeddings(), set(), False
    for path, module in model.named_modules():
        kind = module.kind if isinstance(module, QuantizedStack) else type(module)
        kinds.add(kind)
        may_be_smaller = module is not head and fewest_bits(path.rpartition(".")[2]) == 4
        larger = larger or (kind is Int8Linear and may_be_smaller and Int4Linear.fits(module.levels.shape))
    if any(issubclass(kind, HighBitsLinear) for kind in kinds):
        return "gguf"
    if Int4Linear in kinds:
        return "gguf" if larger else "int4"
    return "int8" if Int8Linear in kinds else scheme_of(model.config)
