"""A model before its weights: configuration and tokenizer of a hub name, a directory or a GGUF file."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from transformers import AutoConfig, AutoTokenizer, PreTrainedConfig, PreTrainedTokenizerBase
from transformers.models.auto import tokenization_auto

from winnow.bundled import MODEL_PATH, NAME
from winnow.errors import ModelError
from winnow.models.gguf import SUFFIX, check_gguf, is_gguf, read_gguf
from winnow.models.kinds import check_compressible
from winnow.models.reading import reading


@dataclass(frozen=True)
class ModelSource:
    """A model whose weights are not loaded yet: enough to count tokens and to refuse what cannot work."""

    name: str
    """As the user wrote it: a directory, a GGUF file, or a name on the Hugging Face hub."""
    config: PreTrainedConfig
    tokenizer: PreTrainedTokenizerBase

    @property
    def context(self) -> int | None:
        """Tokens that prompt and answer may have together, or None where the configuration does not say."""
        return context_length(self.config)

    def count_tokens(self, text: str) -> int:
        """Tokens of a text alone, without those that the tokenizer puts around it."""
        return len(self.tokenizer(text, add_special_tokens=False).input_ids)

    @property
    def gguf(self) -> bool:
        """True if it is a GGUF file."""
        return is_gguf(self.name)


def context_length(config: PreTrainedConfig) -> int | None:
    """Tokens that prompt and answer may have together, or None where the configuration does not say."""
    length = getattr(config.get_text_config(decoder=True), "max_position_embeddings", None)
    return length if isinstance(length, int) and length > 0 else None


def answer_room(config: PreTrainedConfig, prompt: int, most: int) -> int:
    """Tokens that the answer to a prompt of so many may have: `most`, or fewer where the model can read no more."""
    context = context_length(config)
    return most if context is None else min(most, context - prompt)


def open_model(name: str | Path) -> ModelSource:
    """Reads configuration and tokenizer of a directory, a GGUF file or a hub name.

    The bundled model is at hand by its name, too: "winnow-bundled".

    Raises:
        ModelError: nothing there, files missing or damaged, no network, a missing package, or an architecture that
            winnow cannot compress.
    """
    text = str(MODEL_PATH) if str(name) == NAME else str(name)
    _check_name(text)
    if is_gguf(text):
        return _open_gguf(text)
    config = read_configuration(text)
    _check_tokenizer(text)
    tokenizer = reading(text, "tokenizer", lambda: AutoTokenizer.from_pretrained(text, trust_remote_code=False))
    return ModelSource(text, config, tokenizer)


def read_configuration(name: str) -> PreTrainedConfig:
    """The configuration of a directory or hub name. Raises ModelError as `open_model`."""
    config = reading(name, "configuration", lambda: AutoConfig.from_pretrained(name, trust_remote_code=False))
    check_compressible(config, name)
    return config


def _open_gguf(name: str) -> ModelSource:
    config = read_gguf(name, "configuration", lambda file: AutoConfig.from_pretrained(**file))
    check_compressible(config, name)
    options = _tokenizer_options(config)
    tokenizer = read_gguf(name, "tokenizer", lambda file: AutoTokenizer.from_pretrained(**file, **options))
    config.name_or_path = tokenizer.name_or_path = name
    return ModelSource(name, config, tokenizer)


def _tokenizer_options(config: PreTrainedConfig) -> dict[str, str]:
    """The class of a file's tokenizer told to transformers, which would read the configuration again to find it."""
    named = getattr(tokenization_auto, "TOKENIZER_MAPPING_NAMES", {}).get(config.model_type)
    # Mistral's needs files of its own, in whose place transformers takes another class.
    plain = named != "MistralCommonBackend" and getattr(config, "tokenizer_class", None) is None
    return {"tokenizer_type": config.model_type} if isinstance(named, str) and plain else {}


def _check_name(name: str) -> None:
    # Not those of Path, which raise for names that are too long, or of no user's home.
    path = os.path.expanduser(name)
    if os.path.isfile(path):
        check_gguf(name)
        return
    if os.path.isdir(path):
        if not os.path.isfile(os.path.join(path, "config.json")):
            raise ModelError(f"{name} has no config.json; give the directory of a Hugging Face model{_files_in(path)}.")
        return
    looks_like_a_path = name.startswith((".", "/", "~")) or name.count("/") > 1 or name.lower().endswith(SUFFIX)
    if looks_like_a_path:
        raise ModelError(
            f"There is no file or directory {name}; give a model's directory, a GGUF file, or a Hugging Face name."
        )


def _files_in(directory: str) -> str:
    """A hint at the GGUF files of a directory. Raises ModelError for one that may not be read."""
    if not os.access(directory, os.R_OK):
        raise ModelError(f"{directory} cannot be read: you have no permission. Change it, or use another directory.")
    found = sorted(file for file in os.listdir(directory) if file.lower().endswith(SUFFIX))
    return f", or its GGUF file {os.path.join(directory, found[0])}" if found else ""


def _check_tokenizer(name: str) -> None:
    path = Path(os.path.expanduser(name))
    if os.path.isdir(path) and not any([*path.glob("tokenizer*"), *path.glob("vocab*")]):
        raise ModelError(f"{name} has no tokenizer; put the model's tokenizer files next to its config.json.")
