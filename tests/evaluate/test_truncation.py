"""Texts without their middle, against the cut as LongBench describes it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

from winnow.bundled import MODEL_PATH
from winnow.errors import PromptError
from winnow.evaluate.prompts import encode_prompt
from winnow.evaluate.truncation import without_middle
from winnow.models import open_model
from winnow.tasks.prompt_style import PromptStyle

TOKENIZER = open_model(MODEL_PATH).tokenizer
WORDS = "the lemon is red . alice likes mango , and 7 of the cards equal variable b".split()
documents = st.lists(st.sampled_from(WORDS), min_size=1, max_size=200).map(" ".join)
styles = st.sampled_from(
    [PromptStyle(), PromptStyle(system="the sun is yellow ."), PromptStyle(template="{document} : {question}")]
)
QUESTION = "what is the favorite fruit of alice ?"


def ids(text):
    return TOKENIZER(text, add_special_tokens=False).input_ids


@settings(deadline=None, max_examples=60)
@given(documents, styles, st.integers(60, 120))
def test_what_stays_fits_and_is_the_two_ends(document, style, most):
    cut = without_middle(TOKENIZER, document, [QUESTION], most, style)
    length = encode_prompt(TOKENIZER, cut, QUESTION, style).shape[1]
    whole = encode_prompt(TOKENIZER, document, QUESTION, style).shape[1]
    if whole <= most:
        assert cut == document
        return
    # No more is left out than has to be, but for the odd token that halves lose.
    assert most - 4 <= length <= most
    before, after = ids(document), ids(cut)
    room = len(after) + len(ids(QUESTION))
    first = next((i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), len(after))
    assert first >= room // 2 - 3
    last = len(after) - (room // 2 - 3)
    assert last <= 0 or before[len(before) - (len(after) - last) :] == after[last:]


def test_all_characters_but_the_middle_stay():
    """Those of the bundled tokenizer's texts are blanks where halves meet; here they are letters."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    vocabulary = {letter: number for number, letter in enumerate(letters)}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(BPE(vocabulary, [])))
    cut = without_middle(tokenizer, letters, ["yz"], 20, PromptStyle(template="{document}{question}"))
    assert cut == "abcdefghij" + "stuvwxyz"


def test_the_longest_question_decides():
    document = " ".join(WORDS * 20)
    short, long = "why ?", " ".join(["why"] * 20)
    cut = without_middle(TOKENIZER, document, [short, long], 100)
    assert cut == without_middle(TOKENIZER, document, [long], 100)
    assert len(cut) < len(without_middle(TOKENIZER, document, [short], 100))


def test_a_question_that_leaves_no_room_is_refused():
    with pytest.raises(PromptError, match="shorten the question"):
        without_middle(TOKENIZER, "the lemon is red . " * 40, [" ".join(["why"] * 80)], 100)


def test_other_tokenizers_are_refused_where_something_has_to_go(monkeypatch):
    tokenizer = open_model(MODEL_PATH).tokenizer
    monkeypatch.setattr(type(tokenizer), "is_fast", False)
    assert without_middle(tokenizer, "the lemon", ["why ?"], 100) == "the lemon"
    with pytest.raises(PromptError, match="fast"):
        without_middle(tokenizer, "the lemon " * 100, ["why ?"], 100)
