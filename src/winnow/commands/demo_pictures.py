"""The pictures of `winnow demo`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from winnow.evaluate import Score, Trial
from winnow.evaluate.facts import fact_tokens
from winnow.evaluate.prompts import encode_prompt
from winnow.evaluate.shared import DenseReader
from winnow.report import Line, Panel, draw_accuracy, draw_kept_map
from winnow.tasks import Question

SCORES_PICTURE, KEPT_PICTURE = "accuracy.png", "kept-tokens.png"
MAP_METHODS = ("headkv-er", "cokv", "kvec", "aperturekv", "adakv", "snapkv", "streamingllm")
MAP_BUDGETS = ("256", "128", "32")
"""The first of them that was asked for."""


class Subject(NamedTuple):
    """Model, document and questions of the demo."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    document: str
    questions: Sequence[Question]


def draw_scores(folder: Path, subject: Subject, scores: Sequence[Score]) -> Path:
    """Accuracy against budget."""
    points: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    for score in scores:
        if score.budget != "everything":
            points[score.method].append((float(score.budget), score.accuracy))
    full = next((score for score in scores if score.method == "full"), None)
    prompt = full.mean_slots if full else None
    return draw_accuracy(
        folder / SCORES_PICTURE,
        [Line(method, sorted(line)) for method, line in points.items()],
        title="How much of the cache does an answer need?",
        subtitle=f"bundled model, {len(subject.questions)} questions about one document of "
        f"{prompt or 0:,.0f} tokens, question visible at compression",
        full=full.accuracy if full else None,
        prompt_tokens=prompt,
    )


def draw_kept(folder: Path, subject: Subject, trials: Sequence[Trial]) -> Path:
    """Tokens that several methods keep for one question at the same budget."""
    question = _question_for_map(trials)
    shown = _trials_for_map(trials, question)
    prompt = encode_prompt(subject.tokenizer, subject.document, question.text)
    dense = DenseReader(subject.model, [trial.method for trial in shown]).read(prompt)
    facts = fact_tokens(subject.tokenizer, subject.document, question)
    panels = []
    for trial in shown:
        cache = dense.compress(trial.method).cache
        kept = [[head.tolist() for head in layer.kept(0)] for layer in cache.compressed_layers()]
        panels.append(Panel(trial.method.name, _note(trial, kept, facts), kept))
    return draw_kept_map(
        folder / KEPT_PICTURE,
        panels,
        length=prompt.shape[1],
        title=f"What each head keeps of {prompt.shape[1]:,} tokens: {shown[0].method.budget} on average",
        subtitle=f"Asked: {question.text}  Orange: the sentences that the answer is in.",
        facts=facts,
    )


def _question_for_map(trials: Sequence[Trial]) -> Question:
    """One in several steps that the full cache answers, if there is one."""
    right = [trial.question for trial in trials if trial.method.full and trial.right]
    in_steps = [question for question in right if question.kind == "reasoning"]
    return next(iter([*in_steps, *right, trials[0].question]))


def _trials_for_map(trials: Sequence[Trial], question: Question) -> list[Trial]:
    """The trials of one question at one budget, in the order of `MAP_METHODS`."""
    budgets = {str(trial.method.budget) for trial in trials}
    budget = next(budget for budget in MAP_BUDGETS if budget in budgets)
    by_name = {
        trial.method.name: trial
        for trial in trials
        if trial.question is question and str(trial.method.budget) == budget
    }
    return [by_name[name] for name in MAP_METHODS if name in by_name]


def _note(trial: Trial, kept: list[list[list[int]]], facts: Sequence[tuple[int, int]]) -> str:
    """The share of the facts that is left, and the verdict on the answer."""
    needed = {token for start, stop in facts for token in range(start, stop)}
    heads = [needed.intersection(positions) for layer in kept for positions in layer]
    found = len(set().union(*heads)) if heads else 0
    verdict = "right" if trial.right else "wrong"
    return f'{found} of {len(needed)} fact tokens kept in some head · answers "{_end(trial.text)}": {verdict}'


def _end(text: str, letters: int = 40) -> str:
    """The last words of an answer: where it comes to the point."""
    return text if len(text) <= letters else "… " + text[-letters:].partition(" ")[2]
