"""Head scores from a repeated text: the most that any token is worth, by definition."""

from __future__ import annotations

import pytest
import torch

from support.families import build, prompt
from support.replay_oracle import ANSWER, FIRST, LATER, kvzip_scores
from winnow.cache.replay_words import ReplayWords
from winnow.errors import HeadScoresError, MethodError
from winnow.estimate.repeated import Calibration, repeated_scores, tokens_that_fit
from winnow.score import KVzip

WORDS = ReplayWords(*map(torch.tensor, (FIRST, LATER, ANSWER)))


@pytest.fixture(scope="module")
def model():
    found = build("llama", num_hidden_layers=2)
    found.set_attn_implementation("winnow")
    return found


@pytest.mark.parametrize("plus", [False, True])
def test_a_head_is_worth_its_best_token_of_any_text(model, plus) -> None:
    texts = [Calibration(prompt(length=length, seed=length), first) for length, first in ((30, 9), (24, 2))]
    found = repeated_scores(model, texts, WORDS, KVzip(chunk=13, normalize=plus), chunk_size=10)
    halves = []
    for text in texts:
        by_layer = kvzip_scores(model, text.tokens[0], 13, 4, plus)
        scores = torch.stack([by_layer[layer][:, max(4, text.first) :] for layer in (0, 1)]).detach()
        middle = -(-scores.shape[-1] // 2)
        halves.append(torch.stack([scores[..., :middle].amax(-1), scores[..., middle:].amax(-1)]))
    one, other = torch.maximum(*halves)
    torch.testing.assert_close(found.values, torch.maximum(one, other), atol=1e-6, rtol=1e-4)
    torch.testing.assert_close(torch.stack(found.halves), torch.stack([one, other]), atol=1e-6, rtol=1e-4)
    assert found.agreement.heads == 4


def test_what_does_not_fit_is_refused_or_cut(model) -> None:
    with pytest.raises(MethodError, match="shorten the prompt"):
        repeated_scores(model, [Calibration(prompt(length=500), 0)], WORDS, KVzip())
    most = tokens_that_fit(512, 1000, WORDS, KVzip())
    repeated_scores(model, [Calibration(prompt(length=most), 0)], WORDS, KVzip())
    assert tokens_that_fit(None, 1000, WORDS, KVzip()) == tokens_that_fit(10_000, 1000, WORDS, KVzip()) == 1000


def test_what_fits_is_repeated_at_once() -> None:
    most = tokens_that_fit(512, 1000, WORDS, KVzip())
    assert 512 - 2 <= 2 * most + WORDS.around <= 512


def test_layers_of_different_heads_have_no_table() -> None:
    uneven = build("llama", num_hidden_layers=2)
    uneven.set_attn_implementation("winnow")
    uneven.model.layers[1].self_attn.num_key_value_groups = 1
    with pytest.raises(HeadScoresError, match="one number"):
        repeated_scores(uneven, [Calibration(prompt(length=30), 0)], WORDS, KVzip())
