"""Prompts, with a chat template where there is one."""

from __future__ import annotations

import pytest
import torch

from winnow.bundled import MODEL_PATH
from winnow.errors import PromptError
from winnow.evaluate.prompts import encode_prompt, prompt_text
from winnow.models import open_model
from winnow.tasks import format_prompt
from winnow.tasks.prompt_style import PromptStyle


def test_chat_templates_are_used_where_there_are_any(source):
    tokenizer = open_model(MODEL_PATH).tokenizer
    plain = encode_prompt(tokenizer, "The lemon is red.", "What is red?")
    assert torch.equal(
        plain, tokenizer(format_prompt("The lemon is red.", "What is red?"), return_tensors="pt").input_ids
    )
    tokenizer.chat_template = "{% for m in messages %}<s> {{ m.content }}{% endfor %} answer :"
    words = tokenizer.decode(encode_prompt(tokenizer, "The lemon is red.", "What is red?")[0])
    assert words == "<s> the lemon is red. what is red? answer :"


ROLES = "{% for m in messages %}<s> {{ m.role }} : {{ m.content }} {% endfor %}answer :"
REFUSING = "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}" + ROLES


def test_a_system_prompt_is_a_message_of_its_own():
    tokenizer = open_model(MODEL_PATH).tokenizer
    tokenizer.chat_template = ROLES
    text, special = prompt_text(tokenizer, "The lemon is red.", "Why?", PromptStyle(system="Be brief."))
    assert text == "<s> system : Be brief. <s> user : The lemon is red.\n\nWhy? answer :"
    assert not special


def test_without_a_template_it_stands_before_the_document(source):
    text, special = prompt_text(source.tokenizer, "The lemon is red.", "Why?", PromptStyle(system="Be brief."))
    assert text == format_prompt("Be brief.\n\nThe lemon is red.", "Why?")
    assert special


def test_templates_may_refuse_it():
    tokenizer = open_model(MODEL_PATH).tokenizer
    tokenizer.chat_template = REFUSING
    encode_prompt(tokenizer, "The lemon is red.", "Why?")
    with pytest.raises(PromptError, match=r"System role not supported.*Leave the system prompt out"):
        encode_prompt(tokenizer, "The lemon is red.", "Why?", PromptStyle(system="Be brief."))
