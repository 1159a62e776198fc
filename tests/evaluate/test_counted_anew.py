"""Models that count the positions of every pass from 0 where none are given (Bamba): loops of Winnow's give them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from support.families import build, prompt, sharpen
from winnow import CompressedCache, compress
from winnow.evaluate.batch import AnswerStart
from winnow.evaluate.decoding import decode, prefill
from winnow.evaluate.likelihood import log_probabilities

N, TURN, STEPS = 40, 5, 24
BAMBA: dict[str, Any] = {
    "num_hidden_layers": 4,
    "attn_layer_indices": [1, 3],
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_d_state": 16,
    "mamba_n_groups": 1,
    "mamba_chunk_size": 16,
    "mamba_expand": 2,
}


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    made = sharpen(build("bamba", **BAMBA))
    made.set_attn_implementation("winnow")
    return made


@pytest.fixture(scope="module")
def logits(model: PreTrainedModel) -> torch.Tensor:
    """[N + TURN, V] of one pass."""
    with torch.no_grad():
        return model(prompt(length=N + TURN), use_cache=False).logits[0]


def assert_close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_a_prompt_in_chunks(model: PreTrainedModel, logits: torch.Tensor) -> None:
    past = CompressedCache(model, "full", prompt_length=N)
    assert_close(prefill(model, prompt(length=N + TURN)[:, :N], past, chunk_size=16), logits[N - 1])


def test_an_answer(model: PreTrainedModel) -> None:
    ids, past = prompt(length=N), CompressedCache(model, "full")
    answer = list(decode(model, past, prefill(model, ids, past), STEPS, frozenset()))
    with torch.no_grad():
        expected = model(torch.cat([ids, torch.tensor([answer])], dim=1), use_cache=False).logits[0, N - 1 : -1]
    assert answer == expected.argmax(-1).tolist()


@pytest.mark.parametrize("chunk", [None, 16])
def test_a_question_behind_a_context(model: PreTrainedModel, logits: torch.Tensor, chunk: int | None) -> None:
    ids = prompt(length=N + TURN)
    context = compress(model, ids[:, :N], "full", chunk_size=chunk)
    assert_close(prefill(model, ids[:, N:], context.cache()), logits[-1])


def test_a_continuation(model: PreTrainedModel, logits: torch.Tensor) -> None:
    ids, past = prompt(length=N + TURN), CompressedCache(model, "full")
    start = AnswerStart(past, prefill(model, ids[:, :N], past))
    found = log_probabilities(model, start, ids[0, N:])
    assert_close(found, logits[N - 1 : -1].log_softmax(-1))
