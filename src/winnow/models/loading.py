"""Models with their weights, and their skeletons, which tell shapes and compute nothing."""

from __future__ import annotations

import tempfile
import weakref
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import PreTrainedConfig, PreTrainedModel

from winnow.errors import ModelError
from winnow.heap import give_back
from winnow.models.arrival import rounded_on_arrival
from winnow.models.devices import DeviceMap, check_device_map, pick_device
from winnow.models.dtypes import pick_dtype
from winnow.models.experts import read_experts_directly
from winnow.models.few_rows import read_weights_directly
from winnow.models.gated import gate_in_one_pass
from winnow.models.gated_norms import gate_norms_in_one_pass
from winnow.models.gguf import end_tokens, follow_settings, read_gguf
from winnow.models.gguf_loading import read_row_by_row
from winnow.models.gguf_rounding import LevelsKept
from winnow.models.kinds import loader_of
from winnow.models.mlps import feed_in_pieces
from winnow.models.multiplied import multiplies_by_kernels
from winnow.models.norms import normalize_in_one_pass
from winnow.models.reading import reading
from winnow.models.recurrent import recur_in_one_pass
from winnow.models.rotary import embed_in_one_pass
from winnow.models.rounding import Rounding
from winnow.models.source import ModelSource, read_configuration
from winnow.models.weights import bits_of, check_weights, quantize_weights, written_out


def load_model(
    source: ModelSource,
    device: str = "auto",
    dtype: str = "auto",
    device_map: DeviceMap | None = None,
    weights: str = "auto",
) -> PreTrainedModel:
    """The model with its weights, ready for a CompressedCache.

    device: "auto" (a CUDA device if there is one), "cpu", "cuda", "cuda:1" or "mps". dtype: "auto" (the checkpoint's
    own; float32 instead of float16 on the CPU; of a GGUF file bfloat16; float32 instead of bfloat16 on a CPU that would
    be slower in it), "float32", "bfloat16" or "float16". device_map: instead of a device, a way to spread the layers
    over all. weights: "auto" (the checkpoint's own), or "int8" or "int4" for linear layers of fewer bits, on one CPU,
    where "auto" is bfloat16; or "gguf" for the 4, 5 or 6 bits of a GGUF file, and 8 where it has more. Weights are read
    and rounded one by one; those that a GGUF file has at 16 levels are not rounded to 4 bits again.

    On a CPU plain ones and experts are read without a copy for few rows (`read_weights_directly`,
    `read_experts_directly`), norms and rotary embeddings take one pass (`normalize_in_one_pass`, `embed_in_one_pass`),
    and so does linear attention (`recur_in_one_pass`, `gate_norms_in_one_pass`), and MLPs a piece of a long prompt at a
    time (`feed_in_pieces`), and gate a token in one pass (`gate_in_one_pass`).

    Raises:
        ModelError: the weights are missing or unreadable, there is no such device, or it has no kernel for `weights`.
    """
    check_device_map(device_map, device)
    where = pick_device(device)
    check_weights(weights, source, where, device_map is not None)
    kind = dtype_for(source, where, dtype, weights, spread=device_map is not None)
    model, missing = _loaded(source, kind, device_map, weights)
    if missing:
        raise ModelError(
            f"{source.name} has no weights for {missing[0]}"
            + (f" and {len(missing) - 1} more parameters" if len(missing) > 1 else "")
            + ", which would be random: its files are damaged, or belong to another model; copy them again."
        )
    model.set_attn_implementation("winnow")
    if weights != "auto":
        quantize_weights(model, weights)
    if device_map is None:
        if where.type == "cpu":
            use_own_layers(model)
        model = model.to(where)
        give_back()
        return model.eval()
    if model.device.type == "meta":
        raise ModelError(
            f"The memory of all devices together is too small for even the first part of {source.name}: use a smaller "
            "model, or --dtype bfloat16."
        )
    return model.eval()


def dtype_for(
    source: ModelSource, device: torch.device, dtype: str, weights: str = "auto", spread: bool = False
) -> torch.dtype | str:
    """The type that a model's weights have once they are loaded, "auto" for the checkpoint's: see `pick_dtype`.

    spread: by a device map, which leaves layers torch's own.

    Raises ModelError for a type that there is not, or an architecture that needs another package.
    """

    def by_kernels() -> bool:
        if spread:
            return False
        skeleton = reading(source.name, "architecture", lambda: _without_weights(source.config, torch.bfloat16))
        return multiplies_by_kernels(skeleton)

    return pick_dtype(dtype, device, source.config, by_kernels, source.gguf, weights)


def use_own_layers(model: PreTrainedModel) -> None:
    """Puts Winnow's layers in place of a model's on the CPU where they are faster, and its rotary embedding."""
    read_weights_directly(model)
    read_experts_directly(model)
    normalize_in_one_pass(model)
    gate_norms_in_one_pass(model)
    feed_in_pieces(model)
    gate_in_one_pass(model)
    embed_in_one_pass(model)
    recur_in_one_pass(model)


def open_skeleton(
    source: ModelSource, device: str = "auto", dtype: str = "auto", weights: str = "auto"
) -> PreTrainedModel:
    """The model as `load_model` would give it, without its weights: modules that tell shapes, and compute nothing.

    Raises:
        ModelError: the architecture needs another package, there is no such device, or it has no kernel for `weights`.
    """
    where = pick_device(device)
    check_weights(weights, source, where, spread=False)
    kind = dtype_for(source, where, dtype, weights)
    return reading(source.name, "architecture", lambda: _without_weights(source.config, kind))


def skeleton_in(directory: Path) -> PreTrainedModel:
    """The same from nothing but the configuration in a directory.

    Raises:
        ModelError: as `open_model` and `open_skeleton`, or a model that is no causal language model.
    """
    name = str(directory)
    config = read_configuration(name)
    loader_of(config)
    model = reading(name, "architecture", lambda: _without_weights(config, "auto"))
    made = getattr(config, "architectures", None) or [type(model).__name__]
    if type(model).__name__ not in made:
        raise ModelError(f"{name} is a {made[0]}, which cannot generate text.")
    return model


def _without_weights(config: PreTrainedConfig, kind: torch.dtype | str) -> PreTrainedModel:
    if isinstance(kind, str):
        # What the weights are tells only the checkpoint, where the configuration does not.
        kind = getattr(config, "dtype", None) or torch.bfloat16
    with torch.device("meta"):
        model: PreTrainedModel = loader_of(config).from_config(config, dtype=kind, trust_remote_code=False)
    return model


def _loaded(
    source: ModelSource, kind: torch.dtype | str, device_map: DeviceMap | None, weights: str
) -> tuple[PreTrainedModel, list[str]]:
    """The model, its weights of few bits rounded already, and the parameters that its files do not hold."""
    options: dict[str, Any] = {"dtype": kind, "output_loading_info": True}
    # For weights that fit into no memory; it goes with the model, or at once where loading fails.
    folder = (
        None if device_map is None else tempfile.TemporaryDirectory("-offload", "winnow-", ignore_cleanup_errors=True)
    )
    if folder is not None:
        options |= {"device_map": device_map, "offload_folder": folder.name}
    rounding = None if weights == "auto" else Rounding(bits_of(weights))
    with nullcontext() if rounding is None else rounded_on_arrival(rounding):
        if source.gguf:
            model, found = _from_gguf(source, options, weights, rounding)
        else:
            model, found = _from_checkpoint(source, options, weights)
    if folder is not None:
        weakref.finalize(model, folder.cleanup)
    return model, sorted(found["missing_keys"])


def _from_checkpoint(source: ModelSource, options: dict[str, Any], weights: str) -> tuple[PreTrainedModel, Any]:
    if weights != "auto":
        options = options | {"quantization_config": written_out(source.config)}
    loader = loader_of(source.config)
    return reading(
        source.name, "weights", lambda: loader.from_pretrained(source.name, trust_remote_code=False, **options)
    )


def _from_gguf(
    source: ModelSource, options: dict[str, Any], weights: str, rounding: Rounding | None
) -> tuple[PreTrainedModel, Any]:
    kept = None if rounding is None or weights == "int8" else LevelsKept(rounding)
    follow_settings()
    # With the configuration: reading it again takes seconds.
    options = options | {"config": source.config}
    # Else some versions leave weights in the file's blocks where they have kernels for them, which nothing of
    # Winnow's reads, and give advice for that case; earlier ones know no other way than to unpack.
    if (settings := getattr(transformers, "GgufConfig", None)) is not None:
        options["quantization_config"] = settings(dequantize=True)
    loader = loader_of(source.config)
    with read_row_by_row(kept):
        model, found = read_gguf(source.name, "weights", lambda file: loader.from_pretrained(**file, **options))
    if kept is not None:
        kept.check(model)
        if weights == "gguf":
            kept.check_bits(source.name)
    model.config.name_or_path = model.name_or_path = source.name
    model.generation_config.eos_token_id = end_tokens(source.config, source.tokenizer)
    return model, found
