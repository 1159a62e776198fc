"""GGUF files: configuration, tokenizer and quantized weights in one, as llama.cpp reads them.

transformers unpacks the weights when it loads them; the cache that is compressed is that of an ordinary model.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

import transformers
from jinja2 import TemplateError
from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from winnow.errors import ModelError
from winnow.models.gguf_strings import lists_in_one_pass
from winnow.models.reading import reading

T = TypeVar("T")
SUFFIX = ".gguf"
_REMEDY = (
    "The file is damaged, or of a kind that transformers does not read: copy it again, or give the model's directory "
    "or Hugging Face name."
)
_MAGIC = b"GGUF"
_NEEDED = ("gguf", "accelerate")
_PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$", flags=re.IGNORECASE)
_SAID = "So be it"
"""An answer to find the end of; any text would do that no template writes itself."""


def is_gguf(name: str) -> bool:
    """True if a name is that of a file which begins as GGUF files do, whatever it is called."""
    try:
        with open(os.path.expanduser(name), "rb") as file:
            return file.read(len(_MAGIC)) == _MAGIC
    except (OSError, ValueError):
        return False


def check_gguf(name: str) -> None:
    """Raises ModelError for a file that is no whole GGUF file, and where a package is missing."""
    if not is_gguf(name):
        raise ModelError(
            f"{name} is a file, and no GGUF file; give one, the directory that holds the model's config.json, or a "
            "Hugging Face name."
        )
    if part := _PART.search(name):
        raise ModelError(
            f"{name} is part {int(part[1])} of {int(part[2])}; join them to one file (llama-gguf-split --merge) and "
            "pass that."
        )
    missing = [package for package in _NEEDED if find_spec(package) is None]
    if missing:
        raise ModelError(f"GGUF files need {' and '.join(missing)}: pip install 'winnow-kv[gguf]'.")


def follow_settings() -> None:
    """Draws the bar under which transformers unpacks weights only where its bars are on, which it does not look at."""
    from transformers import modeling_gguf_pytorch_utils as unpacking  # what it imports is for such files only

    bars = transformers.logging.tqdm
    if getattr(unpacking, "tqdm", bars) is not bars:
        unpacking.tqdm = bars


def read_gguf(name: str, what: str, read: Callable[[dict[str, str]], T]) -> T:
    """Whatever `read` makes of a file, given arguments for transformers' `from_pretrained`.

    The file is in a folder of its own: in the one where it lies there may be the tokenizer of another model, which
    transformers would prefer. Raises ModelError in one line where it fails; what: the part that is read ("weights").
    """
    with tempfile.TemporaryDirectory(prefix="winnow-") as folder:
        link = Path(folder, f"model{SUFFIX}")
        link.symlink_to(Path(name).expanduser().resolve())
        arguments = {"pretrained_model_name_or_path": folder, "gguf_file": link.name}
        try:
            with lists_in_one_pass():
                return reading(name, what, lambda: read(arguments), _REMEDY)
        except ModelError as problem:
            raise ModelError(str(problem).replace(str(link), name)) from problem.__cause__


def stem(name: str) -> str:
    """The name of a GGUF file in results: without folders and suffix."""
    file = Path(name).name
    return file[: -len(SUFFIX)] if file.lower().endswith(SUFFIX) else file


def end_tokens(config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Tokens that end an answer: those that the file names, and the one that its chat template puts behind answers.

    A directory has a generation configuration for that; a GGUF file names a single token, which for some models is not
    the one that ends a turn.
    """
    told = config.get_text_config(decoder=True).eos_token_id
    found = [*(told if isinstance(told, list) else [told]), tokenizer.eos_token_id, _turn_end(tokenizer)]
    return list(dict.fromkeys(token for token in found if token is not None))


def _turn_end(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """The special token that the chat template writes right behind an answer."""
    if getattr(tokenizer, "chat_template", None) is None:
        return None
    messages = [{"role": "user", "content": "Well?"}, {"role": "assistant", "content": _SAID}]
    try:
        text = str(tokenizer.apply_chat_template(messages, tokenize=False))
    except TemplateError:
        return None
    _, found, after = text.rpartition(_SAID)
    ids = tokenizer(after, add_special_tokens=False).input_ids if found else []
    special = {token for token, added in tokenizer.added_tokens_decoder.items() if added.special}
    return ids[0] if ids and ids[0] in special else None
