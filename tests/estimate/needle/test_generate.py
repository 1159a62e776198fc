"""Answers whose every step is tallied: those of the model itself."""

from __future__ import annotations

import pytest

from support.needles import small_plan
from winnow.estimate.needle.generate import answer
from winnow.estimate.needle.scoring import MassTally
from winnow.estimate.needle.settings import NeedleKind

pytestmark = pytest.mark.usefixtures("one_thread")


def test_the_answer_is_the_models_own_and_the_model_is_left_as_it_was(model):
    plan = small_plan(NeedleKind.ER, (200,), depths=1)
    prompt = plan.job(plan.places[0]).prompt
    model.set_attn_implementation("sdpa")
    stock = model.generate(prompt.tokens[None], max_new_tokens=20)[0, len(prompt.tokens) :]
    seen: list[tuple[int, ...]] = []

    class Watching(MassTally):
        def reduced(self, weights):
            seen.append(tuple(weights.shape))
            return super().reduced(weights)

    text = answer(model, plan.tokenizer, prompt, Watching(prompt, 4), 20, chunk_size=64)
    assert text == plan.tokenizer.decode(stock, skip_special_tokens=True).strip()
    assert model.config._attn_implementation == "sdpa"
    # One row of weights per layer and step, and nothing during the prefill. The stop token's step is one more.
    assert seen == [(8, len(prompt.tokens) + step) for step in range(len(stock)) for _ in range(4)]
