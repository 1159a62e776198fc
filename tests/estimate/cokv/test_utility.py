"""The worth of coalitions of heads of the model model."""

from __future__ import annotations

import pytest
import torch

from winnow import CompressedCache, method
from winnow.estimate.cokv.examples import generated_examples
from winnow.estimate.cokv.settings import Terms
from winnow.estimate.cokv.utility import CoalitionUtility
from winnow.evaluate.batch import AnswerStart, decode_batch
from winnow.evaluate.decoding import prefill, stop_tokens
from winnow.evaluate.prompts import encode_prompt
from winnow.metrics import metric

pytestmark = pytest.mark.usefixtures("one_thread")


def test_the_whole_cache_answers_and_the_window_does_not(model, tokenizer) -> None:
    examples = generated_examples(4)
    utility = CoalitionUtility(model, tokenizer, examples, Terms())
    masks = torch.stack([torch.ones(4, 4), torch.zeros(4, 4)]).bool()
    assert [utility(example, masks) for example in range(4)] == [[1.0, 0.0]] * 4


@pytest.mark.parametrize("name", ["exact_match", "contains_all", "token_f1"])
def test_answers_that_stop_early_count_as_whole_ones(model, tokenizer, name: str) -> None:
    """Rows leave the batch once they are decided; each must be judged as if it had been decoded to its end."""
    (example,) = generated_examples(4)[3:]
    masks = torch.rand(24, 4, 4, generator=torch.Generator().manual_seed(2)) < 0.7
    found = CoalitionUtility(model, tokenizer, [example], Terms(metric=name))(0, masks)
    prompt = encode_prompt(tokenizer, example.document, example.question)
    cache = CompressedCache(model, method("full"))
    logits = prefill(model, prompt, cache)
    rows = [AnswerStart(cache.coalitions(mask[None], 8), logits) for mask in masks]
    decoded = decode_batch(model, rows, 24, stop_tokens(model))
    texts = [tokenizer.decode(row.tokens, skip_special_tokens=True) for row in decoded]
    assert found == [metric(name).score(text, example.expected) for text in texts]
    assert 0 < sum(found) < len(found)
