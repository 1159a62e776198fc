"""The bundled model, and a tokenizer that reads prose."""

from __future__ import annotations

import pytest
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from support.needles import BUNDLED, chatty_tokenizer
from winnow.models import load_model


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return load_model(BUNDLED, "cpu", "float32")


@pytest.fixture(scope="module")
def chatty() -> PreTrainedTokenizerBase:
    return chatty_tokenizer()
