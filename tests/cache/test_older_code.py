"""Answers of models whose own code has the earlier name for a cache."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaForCausalLM

import winnow
from support.asked import DOCUMENT, QUESTION
from support.families import build, prompt
from support.older_code import OlderForward, OlderGeneration
from winnow.bundled import MODEL_PATH
from winnow.cache.older_code import taking_new_name
from winnow.models.cache_argument import generation_name

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.filterwarnings("error::FutureWarning")]
OLDER = [OlderForward, OlderGeneration]


@pytest.mark.parametrize("kind", OLDER)
@pytest.mark.parametrize("question_aware", [True, False])
def test_answers_are_those_of_transformers_own_code(tokenizer, kind, question_aware):
    answers = []
    for each in (LlamaForCausalLM, kind):
        model = each.from_pretrained(MODEL_PATH)
        options = {"method": "keydiff", "budget": "50%", "question_aware": question_aware, "max_new_tokens": 4}
        answers.append(winnow.generate(model, tokenizer, DOCUMENT.text, QUESTION.text, **options))
    assert answers[0].text == answers[1].text
    assert answers[0].decode_steps == answers[1].decode_steps > 0


@pytest.mark.parametrize("kind", OLDER)
def test_methods_are_as_before_afterwards(kind):
    model = kind(build("llama").config).eval()
    model.set_attn_implementation("winnow")
    own = model.forward = model.forward
    cache = winnow.CompressedCache(model, "snapkv @ 50%")
    with taking_new_name(model), taking_new_name(model), torch.no_grad():
        model(prompt(length=20), **{generation_name(): cache})
    assert cache.get_seq_length() == 20
    assert vars(model)["forward"] is own
    assert "prepare_inputs_for_generation" not in vars(model)


def test_other_models_stay_as_they_are():
    model = build("llama")
    with taking_new_name(model):
        assert "forward" not in vars(model)
