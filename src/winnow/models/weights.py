"""Weights of fewer bits than the checkpoint's: which there are, where they work, and how a model gets them."""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec
from typing import TypeGuard

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from winnow.errors import ModelError
from winnow.kernels.linear import outruns_torch
from winnow.models.direct import DirectLinear
from winnow.models.int4 import Int4Linear, block_size
from winnow.models.int8 import Int8Embedding, Int8Linear
from winnow.models.large_pages import LargePages
from winnow.models.mixture import keeps_experts_in_one
from winnow.models.quantized import QuantizedLinear
from winnow.models.quantized_experts import QuantizedExperts
from winnow.models.replacing import hooks_of, replace_layers

WEIGHTS = ("auto", "int8", "int4")
"""Names: the checkpoint's own weights; 8 bits with a scale for every output; 4 bits in groups of 32."""
_PLAIN = ("kv_b_proj", "gate", "router")
"""Layers that stay: what latents are expanded with, which is read head by head; what chooses among experts."""

_UNPACKED = ("gguf",)
"""Schemes of files, not of the models that are made of them."""


def check_weights(weights: str, config: PreTrainedConfig, name: str, where: torch.device, spread: bool) -> None:
    """Raises ModelError for an unknown name, where a device has no kernel, and for what is quantized already.

    name: the model's; where: its device; spread: True if it is to lie on several.
    """
    if weights not in WEIGHTS:
        raise ModelError(f"There are no weights {weights!r}; use {', '.join(WEIGHTS)}.")
    came = scheme_of(config)
    if came == "torchao" and find_spec("torchao") is None:
        raise ModelError(f"The weights of {name} were quantized by torchao: pip install 'winnow-kv[quantized]'.")
    if weights == "auto":
        return
    if came:
        raise ModelError(f"The weights of {name} are quantized already ({came}); leave --weights {weights} out.")
    if spread or where.type != "cpu":
        raise ModelError(
            f"--weights {weights} works on a single CPU; use --device cpu, or load the model in transformers with a "
            "quantization_config for your device and pass it to winnow."
        )
    if weights == "int4":
        block_size()


def quantize_weights(model: PreTrainedModel, weights: str) -> None:
    """Puts layers with fewer bits in place of a model's linear ones. The output layer has 8 bits at least.

    weights: "int8" or "int4"; layers of a shape that 4 bits do not fit get 8. Experts that transformers keeps in one
    tensor become linear layers. Embeddings stay, but for one that shares the output layer's weight; so does what is no
    linear layer, and what has a forward of its own. Raises ModelError for adapters that are not merged, for weights
    that are offloaded, and where torch's kernel for 4 bits is not known on this processor.
    """
    _check_layers(model)
    bits = 4 if weights == "int4" else 8
    pages = LargePages() if outruns_torch() else None
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    tied = type(embedding) is nn.Embedding and getattr(head, "weight", None) is embedding.weight
    tied = tied and _is_as_made(embedding)

    def rounded(weight: Tensor, bias: Tensor | None, fewest: int) -> QuantizedLinear:
        small = fewest == 4 and Int4Linear.fits(weight)
        made = (Int4Linear if small else Int8Linear).rounded(weight.detach(), bias)
        if pages is not None:
            pages.move(made)
        return made

    def smaller(name: str, layer: nn.Module) -> nn.Module | None:
        if keeps_experts_in_one(layer) and "forward" not in vars(layer) and not layer._is_expert_parallel:
            return QuantizedExperts(layer, partial(rounded, fewest=bits))
        if not _is_plain(layer) or name in _PLAIN:
            return None
        made = rounded(layer.weight, layer.bias, 8 if layer is head else bits)
        vars(made).update(hooks_of(layer))
        return made

    replace_layers(model, smaller)
    output = model.get_output_embeddings()
    if tied and isinstance(output, Int8Linear):
        sharing = Int8Embedding(output)
        vars(sharing).update(hooks_of(embedding))
        model.set_input_embeddings(sharing)


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


def _is_plain(layer: nn.Module) -> TypeGuard[nn.Linear]:
    """True for torch's own linear layers, and those that multiply by the same weight."""
    return (type(layer) is nn.Linear or isinstance(layer, DirectLinear)) and _is_as_made(layer)


def _is_as_made(layer: nn.Module) -> bool:
    """True for a layer with the forward of its class, and a weight that is not computed anew, as by pruning."""
    return "weight" in layer._parameters and "forward" not in vars(layer)


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
    """The scheme of a model's weights: "int8", "int4", that of a checkpoint or of a library; None for plain ones."""
    kinds = {type(module) for module in model.modules()}
    if Int4Linear in kinds:
        return "int4"
    return "int8" if Int8Linear in kinds else scheme_of(model.config)
