"""Prompts of benchmark examples."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

from winnow.bundled import MODEL_PATH
from winnow.errors import PromptError
from winnow.evaluate.example_prompts import PromptRules, context_tokens, example_tokens, fitted, middle_of
from winnow.models import open_model
from winnow.tasks.example import Example

ROLES = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}{% if add_generation_prompt %}<assistant>"
    "{% endif %}"
)
WAYS = {"plain": None, "template": ROLES}
TEXT = "the lemon of alice is red. the color of bob is blue. the city of carol is paris. "
EXAMPLE = Example("1", TEXT * 4, "\nquestion: what is the color of bob?\n", ("blue",), answer_prefix="the color is")


@pytest.fixture(params=WAYS)
def tokenizer(request):
    found = open_model(MODEL_PATH).tokenizer
    found.chat_template = WAYS[request.param]
    return found


def said(tokenizer, tokens) -> str:
    return tokenizer.decode(tokens[0])


def test_the_prompt_is_context_question_and_the_beginning_of_the_answer():
    tokenizer = open_model(MODEL_PATH).tokenizer
    text = EXAMPLE.context + EXAMPLE.question + EXAMPLE.answer_prefix
    expected = tokenizer(text).input_ids
    assert example_tokens(tokenizer, EXAMPLE, chat_template=False)[0].tolist() == expected
    # No template to use.
    assert example_tokens(tokenizer, EXAMPLE, chat_template=True)[0].tolist() == expected


def test_the_answer_begins_behind_the_template():
    tokenizer = open_model(MODEL_PATH).tokenizer
    tokenizer.chat_template = ROLES
    text = f"<user>{EXAMPLE.context}{EXAMPLE.question}</><assistant>the color is"
    expected = tokenizer(text, add_special_tokens=False).input_ids
    assert example_tokens(tokenizer, EXAMPLE, chat_template=True)[0].tolist() == expected


def test_the_context_ends_before_anything_of_the_question(tokenizer):
    other = Example("2", EXAMPLE.context, "\nquestion: where?\n", ())
    prompts = [example_tokens(tokenizer, each, chat_template=True) for each in (EXAMPLE, other)]
    length = context_tokens(tokenizer, EXAMPLE, prompts, chat_template=True)
    heads = [prompt[0, :length].tolist() for prompt in prompts]
    assert heads[0] == heads[1]
    assert "question" not in said(tokenizer, prompts[0][:, :length])
    assert "carol" in said(tokenizer, prompts[0][:, length - 8 : length])


@pytest.mark.parametrize("limit", [30, 31, 60])
def test_a_long_prompt_loses_its_middle(tokenizer, limit):
    cut = fitted(tokenizer, EXAMPLE, PromptRules(chat_template=True, limit=limit, room=None))
    assert cut.truncated
    assert cut.example.question == EXAMPLE.question
    assert EXAMPLE.context.startswith(cut.example.context[: len(cut.example.context) // 3])
    whole = tokenizer(EXAMPLE.context + EXAMPLE.question).input_ids
    kept = tokenizer(cut.example.context + cut.example.question).input_ids
    half = limit // 2
    assert kept[:half] == whole[:half]
    assert kept[-half:] == whole[-half:]
    assert len(kept) == 2 * half


@settings(max_examples=40, deadline=None)
@given(room=st.integers(40, 160), way=st.sampled_from(sorted(WAYS)))
def test_no_prompt_is_longer_than_there_is_room(room, way):
    tokenizer = open_model(MODEL_PATH).tokenizer
    tokenizer.chat_template = WAYS[way]
    cut = fitted(tokenizer, EXAMPLE, PromptRules(chat_template=True, limit=None, room=room))
    tokens = example_tokens(tokenizer, cut.example, chat_template=True)
    assert tokens.shape[1] <= room
    assert cut.truncated == (example_tokens(tokenizer, EXAMPLE, chat_template=True).shape[1] > room)


def test_a_question_longer_than_half_of_all_keeps_its_end(tokenizer):
    asked = Example("1", "a text.", " ".join(["what is the color of bob?"] * 20), ())
    cut = fitted(tokenizer, asked, PromptRules(chat_template=False, limit=20, room=None)).example
    assert asked.question.endswith(cut.question)
    assert (cut.context + cut.question).startswith("a text.")


def test_a_short_text_stays_whole(tokenizer):
    assert middle_of(tokenizer, "a short text", 100) is None
    rules = PromptRules(chat_template=True, limit=None, room=None)
    assert fitted(tokenizer, EXAMPLE, rules) == (EXAMPLE, False)


def test_special_tokens_count_as_part_of_a_text(tokenizer):
    text = "the lemon is red"  # four tokens, and one that the tokenizer puts before them
    assert middle_of(tokenizer, text, 5) is None
    assert middle_of(tokenizer, text, 4) == slice(3, 9)


def test_no_room_at_all_is_told():
    with pytest.raises(PromptError, match="leaves nothing"):
        fitted(open_model(MODEL_PATH).tokenizer, EXAMPLE, PromptRules(chat_template=False, limit=1, room=None))


@pytest.mark.parametrize("room", [10, 11, 12])
def test_halves_that_meet_in_more_tokens_than_before_fit_as_well(room):
    # "ab" and "cd" are tokens of their own, but side by side b and c belong together first.
    vocabulary = {token: number for number, token in enumerate(["a", "b", "c", "d", "x", "ab", "cd", "bc"])}
    pairs = [("b", "c"), ("a", "b"), ("c", "d")]
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(BPE(vocabulary, pairs)))
    example = Example("1", "ab" * 10 + "x" * 20 + "cd" * 10, "", ())
    cut = fitted(tokenizer, example, PromptRules(chat_template=False, limit=None, room=room))
    assert cut.truncated
    assert room - 3 < example_tokens(tokenizer, cut.example, chat_template=False).shape[1] <= room


def test_a_tokenizer_without_places_serves_what_is_short_enough(monkeypatch):
    tokenizer = open_model(MODEL_PATH).tokenizer
    monkeypatch.setattr(type(tokenizer), "is_fast", False)
    assert not fitted(tokenizer, EXAMPLE, PromptRules(chat_template=False, limit=1000, room=1000)).truncated
    with pytest.raises(PromptError, match="fast"):
        fitted(tokenizer, EXAMPLE, PromptRules(chat_template=False, limit=30, room=None))
