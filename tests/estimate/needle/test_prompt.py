"""Spans of needles among the tokens of any prompt."""

from __future__ import annotations

import random

import pytest
from transformers import PreTrainedTokenizerFast

from support.needles import BUNDLED
from winnow.estimate.errors import NeedleError
from winnow.estimate.needle.examples import ProseExamples, TaskExamples
from winnow.estimate.needle.haystack import (
    ProseHaystack,
    TaskHaystack,
    with_needle,
)
from winnow.estimate.needle.plan import NeedlePlan
from winnow.estimate.needle.prompt import Span, build_prompt, locate
from winnow.estimate.needle.settings import NeedleKind, Settings
from winnow.evaluate.prompts import encode_prompt

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("kind", list(NeedleKind))
@pytest.mark.parametrize("seed", range(4))
def test_the_span_is_found_by_offsets_in_any_prompt(chatty, kind, seed):
    rng = random.Random(seed)
    cases = [
        (chatty, ProseExamples(), ProseHaystack(seed)),
        (BUNDLED.tokenizer, TaskExamples(), TaskHaystack(seed)),
    ]
    for tokenizer, source, haystack in cases:
        for example in source.examples(kind, seed):
            sentences = haystack.sentences(rng.randrange(300), example.avoid)
            before = rng.randint(0, len(sentences))
            prompt = build_prompt(tokenizer, example, sentences, before)
            document = with_needle(sentences, example.needle, before)[0]
            assert prompt.tokens.tolist() == encode_prompt(tokenizer, document, example.question)[0].tolist()
            inside = prompt.tokens[prompt.span.inside]
            said = tokenizer.decode(inside).strip().lower()
            assert said == example.span.lower()
            assert example.span.lower() not in tokenizer.decode(inside[1:]).lower()
            assert example.span.lower() not in tokenizer.decode(inside[:-1]).lower()


def test_tokens_without_characters_are_no_part_of_a_span():
    offsets = [(0, 0), (0, 3), (3, 3), (3, 6), (6, 9), (0, 0)]
    assert locate(offsets, 2, 6) == Span(1, 4)
    assert locate(offsets, 3, 6) == Span(3, 4)
    assert locate(offsets, 9, 12) is None


def test_needles_that_the_tokens_do_not_hold(chatty):
    with pytest.raises(NeedleError, match="does not know the words"):
        build_prompt(BUNDLED.tokenizer, ProseExamples().examples(NeedleKind.R, 0)[0], [], 0)
    shouting = PreTrainedTokenizerFast(tokenizer_object=chatty.backend_tokenizer)
    shouting.chat_template = "{{ messages[0]['content'] | upper }}"
    with pytest.raises(NeedleError, match="chat template changes the text"):
        build_prompt(shouting, ProseExamples().examples(NeedleKind.R, 0)[0], [], 0)


def test_tokenizers_without_offsets_are_refused():
    class Slow:
        is_fast = False

    with pytest.raises(NeedleError, match="Slow does not map tokens to characters"):
        NeedlePlan(
            Slow(), Settings(NeedleKind.R, (0,), (0.5,)), TaskExamples().examples(NeedleKind.R, 0), TaskHaystack(0)
        )
