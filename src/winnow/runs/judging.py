"""Answers of methods to the examples of a reading, judged: by a metric, or by probabilities."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from functools import partial
from typing import NamedTuple

from transformers import PreTrainedTokenizerBase

from winnow.composition.method import Method
from winnow.evaluate.batch import AnswerStart, Decoded
from winnow.evaluate.decoding import clock
from winnow.evaluate.likelihood import continuation_tokens, fidelity, log_probabilities, total
from winnow.metrics import Expected, MetricError
from winnow.runs.reading import Costs, Reading
from winnow.tasks.example import LIKELIHOODS, Example, Judging
from winnow.tasks.put import judged_by


class Judged(NamedTuple):
    """The answer to an example."""

    costs: Costs
    scores: dict[str, float]
    text: str
    new_tokens: int
    steps: int
    seconds: float
    """Time of those steps."""
    together: int = 1
    """Methods whose answers were decoded side by side: the time is a share of theirs."""


def judged(
    tokenizer: PreTrainedTokenizerBase,
    reading: Reading,
    methods: Sequence[Method],
    examples: Sequence[Example],
    judging: Judging,
) -> Iterator[list[Judged]]:
    """For every method, in order, one for every example; answers of all methods are decoded side by side.

    Raises MetricError for an example that its metric cannot judge.
    """
    if judging.metric not in LIKELIHOODS:
        yield from _answered(tokenizer, reading, methods, examples, judging)
        return
    judge = {"choice": partial(_chosen, tokenizer), "fidelity": partial(_continued, tokenizer)}[judging.metric]
    for method in methods:
        yield list(judge(reading, method, examples))


def _answered(
    tokenizer: PreTrainedTokenizerBase,
    reading: Reading,
    methods: Sequence[Method],
    examples: Sequence[Example],
    judging: Judging,
) -> Iterator[list[Judged]]:
    judge = partial(_judged, tokenizer, judging, len(methods))
    for answers in reading.answers(methods, judging.max_new_tokens):
        yield [judge(example, *answer) for example, answer in zip(examples, answers, strict=True)]


def _judged(
    tokenizer: PreTrainedTokenizerBase,
    judging: Judging,
    together: int,
    example: Example,
    costs: Costs,
    decoded: Decoded,
) -> Judged:
    judge = judged_by(judging)
    # To the letter, as published code judges: blanks before a line of code count.
    text = tokenizer.decode(decoded.tokens, skip_special_tokens=True)
    scores = {judge.name: judge.score(text, Expected(example.answers, example.choices))}
    return Judged(costs, scores, text, len(decoded.tokens), decoded.steps, decoded.seconds, together)


def _chosen(
    tokenizer: PreTrainedTokenizerBase, reading: Reading, method: Method, examples: Sequence[Example]
) -> Iterator[Judged]:
    """The choice of the highest log-probability, all of its tokens together."""
    for example, (costs, start) in zip(examples, reading.starts(method), strict=True):
        if not example.choices or not set(example.answers) <= set(example.choices):
            raise MetricError(f"Example {example.name}: the right answer is none of its choices.")
        begin = clock(reading.model)
        options = [continuation_tokens(tokenizer, choice) for choice in example.choices]
        # Every choice goes on from a fork of its own.
        found = [total(log_probabilities(reading.model, _fork(start), tokens), tokens) for tokens in options]
        best = example.choices[found.index(max(found))]
        steps, seconds = sum(map(len, options)), clock(reading.model) - begin
        yield Judged(costs, {"choice": float(best in example.answers)}, best, 0, steps, seconds)


def _continued(
    tokenizer: PreTrainedTokenizerBase, reading: Reading, method: Method, examples: Sequence[Example]
) -> Iterator[Judged]:
    """A given continuation, against the full cache's view of it.

    Its first token does not count where the whole prompt was there at compression: the prefill is dense, so nothing was
    missing yet when it was predicted.
    """
    full = reading.full_log_probabilities([continuation_tokens(tokenizer, each.answers[0]) for each in examples])
    for example, reference, (costs, start) in zip(examples, full, reading.starts(method), strict=True):
        begin = clock(reading.model)
        tokens = continuation_tokens(tokenizer, example.answers[0])
        if len(tokens) < 2:
            raise MetricError(f"Example {example.name}: a continuation needs two tokens at least.")
        found = log_probabilities(reading.model, start, tokens)
        near = fidelity(found[1:], reference[1:], tokens[1:])
        yield Judged(costs, near._asdict(), "", 0, len(tokens) - 1, clock(reading.model) - begin)


def _fork(start: AnswerStart) -> AnswerStart:
    return AnswerStart(deepcopy(start.cache), start.logits)
