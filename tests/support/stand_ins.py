"""Models with Winnow's layers in place of their own, held against the same models without."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import torch
from torch import nn
from transformers import PreTrainedModel

import winnow
from support.families import prompt
from support.plain_layers import load_plain
from winnow.bundled import MODEL_PATH
from winnow.cache.fingerprint import ModelFingerprint
from winnow.models import load_model, open_model

QUESTION = "What is the favorite fruit of Alice?"


@torch.no_grad()
def assert_same_logits(model: PreTrainedModel, plain: PreTrainedModel) -> None:
    """Both compute the same for a batch of prompts, roundings aside."""
    ids = prompt(2, 9)
    torch.testing.assert_close(model(ids).logits, plain(ids).logits, rtol=1e-3, atol=1e-4)


def assert_files_know_the_model(model: PreTrainedModel, plain: PreTrainedModel, folder: Path) -> None:
    """Contexts and checkpoints take both for the same model, with the same parameters."""
    assert ModelFingerprint.of(model) == ModelFingerprint.of(plain)
    assert list(model.state_dict()) == list(plain.state_dict())
    model.save_pretrained(folder)
    read = type(plain).from_pretrained(folder)
    assert all(torch.equal(one, other) for one, other in zip(read.parameters(), plain.parameters(), strict=True))


@torch.no_grad()
def used_copies(model: nn.Module) -> tuple[nn.Module, nn.Module]:
    """A copy of a model, and what a pickle of it holds, after it has computed something."""
    model(prompt(1, 3))
    return copy.deepcopy(model), pickle.loads(pickle.dumps(model))


def loaded(dtype: str = "auto") -> tuple[PreTrainedModel, PreTrainedModel]:
    """The bundled model on the CPU as it is loaded, and with torch's layers."""
    source = open_model(MODEL_PATH)
    return load_model(source, "cpu", dtype), load_plain(source, dtype)


def assert_same_answers(model: PreTrainedModel, plain: PreTrainedModel, methods: tuple[str, ...] = ("adakv",)) -> None:
    """Both, of `loaded`, answer a question about a document in the same words."""
    tokenizer, text = open_model(MODEL_PATH).tokenizer, (MODEL_PATH / "document.txt").read_text()
    for method in methods:
        found, expected = (
            winnow.generate(each, tokenizer, text, QUESTION, method=method).text for each in (model, plain)
        )
        assert found == expected
