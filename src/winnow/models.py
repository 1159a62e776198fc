"""Loading a model by name or path: first what is small (configuration, tokenizer), then the weights."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from winnow.errors import ModelError, WinnowError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class ModelSource:
    """A model whose weights are not loaded yet: enough to count tokens and to refuse what cannot work."""

    name: str
    """As the user wrote it: a directory, or a name on the Hugging Face hub."""
    config: PreTrainedConfig
    tokenizer: PreTrainedTokenizerBase

    @property
    def context(self) -> int | None:
        """Tokens that prompt and answer may have together, or None where the configuration does not say."""
        return context_length(self.config)


def context_length(config: PreTrainedConfig) -> int | None:
    """Tokens that prompt and answer may have together, or None where the configuration does not say."""
    length = getattr(config.get_text_config(decoder=True), "max_position_embeddings", None)
    return length if isinstance(length, int) and length > 0 else None


def answer_room(config: PreTrainedConfig, prompt: int, most: int) -> int:
    """Tokens that the answer to a prompt of so many may have: `most`, or fewer where the model can read no more."""
    context = context_length(config)
    return most if context is None else min(most, context - prompt)


def open_model(name: str | Path) -> ModelSource:
    """Reads configuration and tokenizer of a directory or hub name.

    Raises:
        ModelError: nothing there, files missing, no network, or an architecture that winnow cannot compress.
    """
    text = str(name)
    _check_directory(text)
    config = _read(text, "configuration", lambda: _configuration(text))
    _check_tokenizer(text)
    tokenizer = _read(text, "tokenizer", lambda: AutoTokenizer.from_pretrained(text, trust_remote_code=False))
    return ModelSource(text, config, tokenizer)


def load_model(source: ModelSource, device: str = "auto", dtype: str = "auto") -> PreTrainedModel:
    """The model with its weights, ready for a CompressedCache.

    device: "auto" (a CUDA device if there is one), "cpu" or "cuda"; dtype: "auto" (the checkpoint's own;
    float32 instead of float16 on the CPU), "float32", "bfloat16" or "float16".

    Raises:
        ModelError: the weights are missing or unreadable, or there is no such device.
    """
    where = pick_device(device)
    kind = _pick_dtype(dtype, where, source.config)
    model, missing = _read(source.name, "weights", lambda: _loaded(source.name, kind))
    if missing:
        raise ModelError(
            f"{source.name} has no weights for {missing[0]}"
            + (f" and {len(missing) - 1} more parameters" if len(missing) > 1 else "")
            + ", which would be random: its files are damaged or of another model; copy them again."
        )
    model.set_attn_implementation("winnow")
    return model.to(where).eval()


def open_skeleton(source: ModelSource, device: str = "auto", dtype: str = "auto") -> PreTrainedModel:
    """The model as `load_model` would give it, without its weights: modules that tell shapes, and compute nothing.

    Raises:
        ModelError: the architecture needs another package, or there is no such device.
    """
    kind = _pick_dtype(dtype, pick_device(device), source.config)
    return _read(source.name, "architecture", lambda: _without_weights(source.config, kind))


def skeleton_in(directory: Path) -> PreTrainedModel:
    """The same from nothing but the configuration in a directory.

    Raises:
        ModelError: as `open_model` and `open_skeleton`, or a model that is no causal language model.
    """
    name = str(directory)
    config = _read(name, "configuration", lambda: _configuration(name))
    if type(config) not in AutoModelForCausalLM._model_mapping:
        raise ModelError(f"{config.model_type} is no causal language model.")
    model: PreTrainedModel = _read(name, "architecture", lambda: _without_weights(config, "auto"))
    made = getattr(config, "architectures", None) or [type(model).__name__]
    if type(model).__name__ not in made:
        raise ModelError(f"{name} is a {made[0]}, which writes no text.")
    return model


def _without_weights(config: PreTrainedConfig, kind: torch.dtype | str) -> PreTrainedModel:
    if isinstance(kind, str):
        # What the weights are tells only the checkpoint, where the configuration does not.
        kind = getattr(config, "dtype", None) or torch.bfloat16
    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=kind, trust_remote_code=False)
    return model


def _loaded(name: str, kind: torch.dtype | str) -> tuple[PreTrainedModel, list[str]]:
    """The model, and the parameters that its files do not hold."""
    model, found = AutoModelForCausalLM.from_pretrained(
        name, dtype=kind, output_loading_info=True, trust_remote_code=False
    )
    return model, sorted(found["missing_keys"])


def pick_device(device: str) -> torch.device:
    """The device of a name. Raises ModelError where it is not available."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device not in ("cpu", "cuda"):
        raise ModelError(f"There is no device {device!r}; use auto, cpu or cuda.")
    if device == "cuda" and not torch.cuda.is_available():
        raise ModelError("No CUDA device is available; use --device cpu, or install a CUDA build of torch.")
    return torch.device(device)


def available_memory(device: torch.device) -> int | None:
    """Bytes that a cache could take on a device now, or None where the system does not tell."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free)
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            found = next((line for line in lines if line.startswith("MemAvailable:")), None)
        if found is not None:
            return int(found.split()[1]) * 1024
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, AttributeError):
        return None


def _pick_dtype(dtype: str, device: torch.device, config: PreTrainedConfig) -> torch.dtype | str:
    if dtype == "auto":
        # CPUs have no float16 arithmetic; emulated, it is slower than float32.
        slow = device.type == "cpu" and getattr(config, "dtype", None) == torch.float16
        return torch.float32 if slow else "auto"
    if dtype not in DTYPES:
        raise ModelError(f"There is no dtype {dtype!r}; use auto, {', '.join(DTYPES)}.")
    return DTYPES[dtype]


def _check_directory(name: str) -> None:
    # Not those of Path, which raise for names that are too long, or of no user's home.
    path = os.path.expanduser(name)
    if os.path.isfile(path):
        raise ModelError(f"{name} is a file; give the directory that holds the model's config.json.")
    if os.path.isdir(path):
        if not os.path.isfile(os.path.join(path, "config.json")):
            raise ModelError(f"{name} has no config.json; give the directory of a Hugging Face model.")
        return
    looks_like_a_path = name.startswith((".", "/", "~")) or name.count("/") > 1
    if looks_like_a_path:
        raise ModelError(f"There is no directory {name}; give a model's directory or its Hugging Face name.")


def _check_tokenizer(name: str) -> None:
    path = Path(os.path.expanduser(name))
    if os.path.isdir(path) and not any([*path.glob("tokenizer*"), *path.glob("vocab*")]):
        raise ModelError(f"{name} has no tokenizer; put the model's tokenizer files beside its config.json.")


def _configuration(name: str) -> PreTrainedConfig:
    """Raises ModelError for an architecture that winnow cannot compress."""
    config = AutoConfig.from_pretrained(name, trust_remote_code=False)
    if getattr(config, "is_encoder_decoder", False):
        raise ModelError(
            f"{name} is an encoder-decoder model ({config.model_type}); winnow compresses the caches of "
            "decoder-only models."
        )
    if getattr(config.get_text_config(decoder=True), "kv_lora_rank", None):
        raise ModelError(
            f"{name} uses multi-head latent attention ({config.model_type}), which has no KV heads to choose "
            "between; use a model with multi-head or grouped-query attention."
        )
    return config


def _read(name: str, what: str, read: Any) -> Any:
    try:
        return read()
    except WinnowError:
        raise
    except ImportError as problem:
        raise ModelError(f"The {what} of {name} needs another package: {first_line(problem)}") from problem
    except Exception as problem:
        # transformers lets through whatever its readers raise: OSError, ValueError, KeyError, ...
        remedy = "" if os.path.isdir(name) else " Check name and network, or give a model's directory."
        raise ModelError(f"Cannot load the {what} of {name}: {first_line(problem)}{remedy}") from problem


def first_line(problem: BaseException) -> str:
    """The first sentence or line of an exception's text; its type where it has none."""
    lines = str(problem).strip().splitlines()
    return lines[0].strip() if lines else type(problem).__name__
