"""Prompts, with a chat template where there is one."""

from __future__ import annotations

import torch

from winnow.bundled import MODEL_PATH
from winnow.evaluate.prompts import encode_prompt
from winnow.models import open_model
from winnow.tasks import format_prompt


def test_chat_templates_are_used_where_there_are_any(source):
    tokenizer = open_model(MODEL_PATH).tokenizer
    plain = encode_prompt(tokenizer, "The lemon is red.", "What is red?")
    assert torch.equal(
        plain, tokenizer(format_prompt("The lemon is red.", "What is red?"), return_tensors="pt").input_ids
    )
    tokenizer.chat_template = "{% for m in messages %}<s> {{ m.content }}{% endfor %} answer :"
    words = tokenizer.decode(encode_prompt(tokenizer, "The lemon is red.", "What is red?")[0])
    assert words == "<s> the lemon is red. what is red? answer :"
