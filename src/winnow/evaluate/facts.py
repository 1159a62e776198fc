"""Places of a document that state what an answer needs."""

from __future__ import annotations

import re
from collections.abc import Iterator

from transformers import PreTrainedTokenizerBase

from winnow.evaluate.prompts import prompt_text
from winnow.tasks import Question
from winnow.tasks.prompt_style import USUAL, PromptStyle


def fact_tokens(
    tokenizer: PreTrainedTokenizerBase, document: str, question: Question, style: PromptStyle = USUAL
) -> list[tuple[int, int]]:
    """[start, stop) token positions of the sentences behind an answer, in a prompt that has the document as it is.

    Needs a tokenizer that knows the characters of its tokens (all "fast" ones do).
    """
    text, special = prompt_text(tokenizer, document, question.text, style)
    encoded = tokenizer(text, add_special_tokens=special, return_offsets_mapping=True)
    begin = text.index(document)
    found = []
    for start, stop in ((begin + start, begin + stop) for start, stop in fact_sentences(document, question)):
        inside = [i for i, (a, b) in enumerate(encoded.offset_mapping) if a < stop and b > start and a < b]
        found.append((inside[0], inside[-1] + 1))
    return sorted(set(found))


def fact_sentences(document: str, question: Question) -> list[tuple[int, int]]:
    """[start, stop) characters of one sentence for each step of the answer ("a equals b, b equals c").

    Of the sentences that hold the last word of a step, the one that shares most words with question and step.
    """
    sentences = [(span, _words(document[slice(*span)])) for span in _sentences(document)]
    found = []
    for step in question.answer.split(","):
        asked, last = _words(question.text) | _words(step), re.findall(r"\w+", step.lower())[-1:]
        candidates = [(span, words) for span, words in sentences if words.issuperset(last)]
        if candidates:
            found.append(max(candidates, key=lambda each: len(each[1] & asked) / len(each[1] | asked))[0])
    return found


def _sentences(text: str) -> Iterator[tuple[int, int]]:
    for match in re.finditer(r"[^.!?\n]+[.!?]?", text):
        if match[0].strip():
            yield match.span()


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.lower()))
