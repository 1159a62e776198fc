"""Small needle plans on the bundled model, and a tokenizer that reads prose."""

from __future__ import annotations

import shutil
from pathlib import Path

from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from winnow.bundled import MODEL_PATH
from winnow.estimate.needle.examples import TaskExamples
from winnow.estimate.needle.haystack import (
    ProseHaystack,
    TaskHaystack,
)
from winnow.estimate.needle.plan import NeedlePlan
from winnow.estimate.needle.settings import NeedleKind, Settings, spread_depths
from winnow.models import open_model

BUNDLED = open_model(MODEL_PATH)


def small_plan(kind: NeedleKind, lengths: tuple[int, ...] = (0, 200), depths: int = 3, seed: int = 0) -> NeedlePlan:
    chosen = Settings(kind, lengths, spread_depths(depths), seed)
    return NeedlePlan(BUNDLED.tokenizer, chosen, TaskExamples(2).examples(kind, seed), TaskHaystack(seed))


def other_weights(folder: Path) -> Path:
    """The bundled model with slightly other weights, in a folder; it answers as before and attends otherwise."""
    shutil.copytree(MODEL_PATH, folder)
    file = folder / "model.safetensors"
    tensors = load_file(file)
    for name, tensor in tensors.items():
        if "layernorm" in name:
            tensors[name] = tensor * 1.03
    save_file(tensors, file, metadata={"format": "pt"})
    return folder


def chatty_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level tokenizer with merges and a chat template, trained on prose."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=700, special_tokens=["<s>", "</s>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(ProseHaystack(1).sentences(3000, frozenset()), trainer)
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")
    wrapped.chat_template = (
        "<s>{% for m in messages %}[{{ m['role'] }}] {{ m['content'] | trim }} {% endfor %}"
        "{% if add_generation_prompt %}[assistant] {% endif %}"
    )
    return wrapped
