"""Prompts of measurements: the same on every day, whatever day a chat template tells."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from transformers import AutoTokenizer

from support.days import DATED, every_day_anew
from winnow.bundled import MODEL_PATH
from winnow.commands.heads.kvzip import calibration
from winnow.estimate.asking import asked_tokens, tokens_before_question
from winnow.estimate.needle.examples import TaskExamples
from winnow.estimate.needle.prompt import build_prompt
from winnow.estimate.needle.settings import NeedleKind
from winnow.evaluate.example_prompts import example_tokens
from winnow.evaluate.prompts import encode_prompt
from winnow.models import open_model
from winnow.tasks.example import Example
from winnow.tasks.prompt_style import USUAL

DOCUMENT, QUESTION = "the lemon of alice is red. the color of bob is blue. " * 8, "what is the color of bob?"


@pytest.fixture
def tokenizer(monkeypatch):
    every_day_anew(monkeypatch)
    found = AutoTokenizer.from_pretrained(MODEL_PATH)
    found.chat_template = DATED
    return found


def test_other_prompts_tell_today(tokenizer):
    first, later = (encode_prompt(tokenizer, DOCUMENT, QUESTION) for _ in range(2))
    assert not torch.equal(first, later)


def test_examples_of_benchmarks(tokenizer):
    example = Example("1", DOCUMENT, QUESTION, ("blue",))
    first, later = (example_tokens(tokenizer, example, chat_template=True) for _ in range(2))
    assert torch.equal(first, later)


def test_questions_in_a_style(tokenizer):
    first, later = (asked_tokens(tokenizer, DOCUMENT, QUESTION, USUAL, None) for _ in range(2))
    assert torch.equal(first, later)
    assert tokens_before_question(tokenizer, DOCUMENT, QUESTION, first, USUAL, None) > 26


def test_needles(tokenizer):
    (example, *_) = TaskExamples().examples(NeedleKind.ER, 0)
    first, later = (build_prompt(tokenizer, example, ["the sky is blue."], 1).tokens for _ in range(2))
    assert torch.equal(first, later)


def test_repeated_texts(tokenizer):
    source = replace(open_model(MODEL_PATH), tokenizer=tokenizer)
    first, later = (calibration(source, DOCUMENT, 100, USUAL) for _ in range(2))
    assert torch.equal(first.tokens, later.tokens)
