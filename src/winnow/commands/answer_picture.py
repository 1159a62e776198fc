"""The picture of `winnow run --picture`: accuracy where right answers are known, else what each method costs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from winnow.commands.answer_groups import MethodAnswers, by_method
from winnow.commands.answers import AnswerResult
from winnow.metrics import DEFAULT_METRIC
from winnow.report import Cost, Line, draw_accuracy, draw_costs
from winnow.report.accuracy import RIGHT


def draw_answers(path: Path, model: str, results: Sequence[AnswerResult]) -> Path:
    """Accuracy against budget, or held bytes and decode speed of every method; returns the path written."""
    groups = by_method(results)
    prompt = fmean(result.answer.prompt_tokens for result in results)
    seen = "visible" if results[0].answer.question_seen else "unknown"
    asked = len({id(result.asked) for result in results})
    questions = "one question" if asked == 1 else f"{asked} questions"
    subtitle = f"{model} · {questions}, {seen} at compression · prompts of {prompt:,.0f} tokens"
    if all(group.known for group in groups) and _lines(groups):
        judged = "" if groups[0].metric == DEFAULT_METRIC else f" · {groups[0].metric}"
        return _draw_accuracy(path, groups, subtitle + judged, prompt)
    return _draw_costs(path, groups, subtitle)


def _draw_accuracy(path: Path, groups: Sequence[MethodAnswers], subtitle: str, prompt: float) -> Path:
    full = next((group for group in groups if group.method.full), None)
    return draw_accuracy(
        path,
        _lines(groups),
        title="How much of the cache do the answers need?",
        subtitle=subtitle,
        full=None if full is None else full.score,
        prompt_tokens=prompt,
        measured=RIGHT if groups[0].metric == DEFAULT_METRIC else f"{groups[0].metric}, mean over the questions",
    )


def _lines(groups: Sequence[MethodAnswers]) -> list[Line]:
    """A line per method over its budgets; methods at the same budget stand above each other."""
    budgets: defaultdict[str, list[float]] = defaultdict(list)
    for group in groups:
        budgets[_budget(group)].append(group.mean_slots)
    points: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    for group in groups:
        if not group.method.full:
            points[group.method.name].append((round(fmean(budgets[_budget(group)]), 1), group.score))
    return [Line(name, sorted(line)) for name, line in points.items()]


def _budget(group: MethodAnswers) -> str:
    """The budget; a method without one, or whose bytes are as many slots as its store makes of them, is at its own."""
    budget = group.method.budget
    return str(budget) if budget.unit in ("tokens", "percent") else str(group.method)


def _draw_costs(path: Path, groups: Sequence[MethodAnswers], subtitle: str) -> Path:
    costs = [
        Cost(
            str(group.method),
            compressed=group.mean(lambda a: a.stats.prefix_bytes + a.stats.other_bytes),
            tail=group.mean(lambda a: a.stats.tail_bytes),
            reserve=group.mean(lambda a: a.stats.reserve_bytes),
            decode_speed=group.decode_speed,
        )
        for group in groups
    ]
    full = fmean(group.mean(lambda a: a.stats.full_bytes) for group in groups)
    return draw_costs(path, costs, full, title="Memory held and speed of decoding, per method", subtitle=subtitle)
