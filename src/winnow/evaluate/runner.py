"""Questions x methods x budgets over one document, with the worth of every answer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from winnow.cache.replay import words_in
from winnow.cache.stats import CacheStats
from winnow.composition.method import Method
from winnow.composition.names import NamedMethod
from winnow.evaluate.batch import AnswerStart, decode_rows
from winnow.evaluate.decoding import stop_tokens
from winnow.evaluate.prompts import encode_prompt
from winnow.evaluate.shared import DensePrompt, DenseReader
from winnow.evaluate.slots import mean_slots
from winnow.evaluate.turns import measured
from winnow.metrics import EXACT_MATCH, Metric, is_right
from winnow.tasks import Question
from winnow.tasks.prompt_style import USUAL, PromptStyle


@dataclass(frozen=True)
class Trial:
    """One question answered under one method and budget."""

    question: Question
    method: Method
    text: str
    score: float
    """The worth of the answer by the metric that was asked for, from 0 to 1."""
    stats: CacheStats
    """Statistics of the sequence's own cache, after compression and before the answer."""
    prefill_seconds: float
    """Time of the whole prompt's prefill, compression included."""
    compress_seconds: float
    decode_steps: int
    decode_seconds: float
    """This sequence's share of the batch it was decoded in."""

    @property
    def right(self) -> bool:
        """True if the answer is worth everything."""
        return is_right(self.score)


@dataclass(frozen=True)
class Score:
    """All questions under one method and budget."""

    method: str
    budget: str
    """As written in the method; "everything" for the full cache."""
    questions: int
    accuracy: float
    """Mean worth of the answers."""
    accuracy_by_kind: dict[str, float]
    mean_slots: float
    """Kept prompt tokens per KV head."""
    held_bytes: float
    """Bytes of one sequence, mean over the questions."""
    full_bytes: float
    compress_share: float
    """Part of the prefill that was spent on compression."""
    decode_speed: float | None
    """Tokens per second of all sequences of a batch together."""


def grid(names: Iterable[str], budgets: Sequence[int | str]) -> list[Method]:
    """Every method at every budget; those that take none, as the full cache, once."""
    named = [NamedMethod(name) for name in names]
    return [each.method(budget) for each in named for budget in (budgets if each.takes_budget else (None,))]


def evaluate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    document: str,
    questions: Sequence[Question],
    methods: Sequence[Method],
    max_new_tokens: int = 32,
    batch: int = 8,
    style: PromptStyle = USUAL,
    judged: Metric = EXACT_MATCH,
) -> Iterator[Trial]:
    """Asks every question under every method; the question is visible at compression.

    batch: sequences decoded side by side. It changes speed and memory (so many prompts are held dense at
    once), never an answer: prompts are prefilled and compressed one by one. Raises MetricError for a question that
    the metric cannot judge.
    """
    for question in questions:
        judged.check(question.expected)
    style = measured(tokenizer, style)
    prompts = [encode_prompt(tokenizer, document, question.text, style) for question in questions]
    if not prompts:
        return
    words = words_in(tokenizer, style.chat_template)
    shared = DenseReader(model, methods, words=words).read_start(prompts)
    for first in range(0, len(prompts), batch):
        dense = [shared.dense(prompt) for prompt in prompts[first : first + batch]]
        for chosen in methods:
            asked = _Asked(chosen, questions[first : first + batch], dense)
            yield from _trials(model, tokenizer, asked, max_new_tokens, judged)


def score_trials(trials: Iterable[Trial]) -> list[Score]:
    """One line per method and budget, in order of appearance."""
    groups: defaultdict[Method, list[Trial]] = defaultdict(list)
    for trial in trials:
        groups[trial.method].append(trial)
    return [_score(chosen, group) for chosen, group in groups.items()]


class _Asked(NamedTuple):
    """Questions about prefilled prompts, to be answered under one method."""

    method: Method
    questions: Sequence[Question]
    prompts: Sequence[DensePrompt]


def _trials(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, asked: _Asked, max_new_tokens: int, judged: Metric
) -> Iterator[Trial]:
    compressed = [prompt.compress(asked.method) for prompt in asked.prompts]
    stats = [each.cache.stats() for each in compressed]
    rows = [AnswerStart(each.cache, prompt.logits) for each, prompt in zip(compressed, asked.prompts, strict=True)]
    for index, decoded in enumerate(decode_rows(model, rows, max_new_tokens, stop_tokens(model))):
        question = asked.questions[index]
        text = str(tokenizer.decode(decoded.tokens, skip_special_tokens=True))
        yield Trial(
            question=question,
            method=asked.method,
            text=text.strip(),
            # As it was said: blanks before a line of code count.
            score=judged.score(text, question.expected),
            stats=stats[index],
            prefill_seconds=asked.prompts[index].seconds + compressed[index].seconds,
            compress_seconds=compressed[index].seconds,
            decode_steps=decoded.steps,
            decode_seconds=decoded.seconds,
        )


def _score(chosen: Method, trials: list[Trial]) -> Score:
    steps, seconds = sum(t.decode_steps for t in trials), sum(t.decode_seconds for t in trials)
    return Score(
        method=chosen.name,
        budget=str(chosen.budget),
        questions=len(trials),
        accuracy=fmean(trial.score for trial in trials),
        accuracy_by_kind=_by_kind(trials),
        mean_slots=fmean(mean_slots(trial.stats) for trial in trials),
        held_bytes=fmean(trial.stats.held_bytes for trial in trials),
        full_bytes=fmean(trial.stats.full_bytes for trial in trials),
        compress_share=sum(t.compress_seconds for t in trials) / sum(t.prefill_seconds for t in trials),
        decode_speed=steps / seconds if steps and seconds else None,
    )


def _by_kind(trials: list[Trial]) -> dict[str, float]:
    kinds: defaultdict[str, list[float]] = defaultdict(list)
    for trial in trials:
        kinds[trial.question.kind].append(trial.score)
    return {kind: fmean(scores) for kind, scores in kinds.items()}
