"""Questions of a benchmark, answered under methods as its protocol puts and judges them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from winnow.cache.replay import words_in
from winnow.composition.method import Method
from winnow.estimate.tune.questions import PutDocument
from winnow.estimate.tune.settings import BATCH_SIZE
from winnow.evaluate.batch import AnswerStart, decode_rows
from winnow.evaluate.decoding import stop_tokens
from winnow.evaluate.example_prompts import example_tokens
from winnow.evaluate.shared import DenseReader
from winnow.tasks.put import judged_by

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def put_answers(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, page: PutDocument, methods: Sequence[Method]
) -> Iterator[tuple[Method, float]]:
    """The worth of every answer under every method; those of a method come in the order of the questions.

    Raises MetricError where the task's metric cannot be had.
    """
    judge, template = judged_by(page.judging), page.judging.chat_template
    reader = DenseReader(model, methods, words=words_in(tokenizer, template))
    asked = [put.example(page.text, question.text) for put, question in zip(page.puts, page.questions, strict=True)]
    for first in range(0, len(asked), BATCH_SIZE):
        prompts = [example_tokens(tokenizer, each, template) for each in asked[first : first + BATCH_SIZE]]
        dense = reader.read_all(prompts)
        for method in methods:
            rows = [AnswerStart(each.compress(method).cache, each.logits) for each in dense]
            answers = decode_rows(model, rows, page.judging.max_new_tokens, stop_tokens(model))
            for question, answer in zip(page.questions[first:], answers, strict=False):
                text = str(tokenizer.decode(answer.tokens, skip_special_tokens=True))
                yield method, judge.score(text, question.expected)
