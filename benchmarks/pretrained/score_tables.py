"""Tables of the studies on pretrained models."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp
from statistics import fmean

from evaluated import Part, Study, score_cell
from reporting import markdown_table
from scope import Division
from winnow.runs.folder import Run
from winnow.runs.rows import method_and_budget, rows_by
from winnow.runs.summary import MethodSummary, summaries


def tables(study: Study, part: Part, run: Run, division: Division | None) -> str:
    """Scores of stores and of methods by budget, and a closer look by what examples differ in; or the fidelity."""
    found = {each.method: each for each in summaries(run.rows)}
    whole = sorted((each for each in found.values() if "@" not in each.method), key=lambda each: -each.held_share)
    rows: dict[str, dict[str, MethodSummary]] = {}
    for each in found.values():
        name, budget = method_and_budget(each.method)
        if budget:
            rows.setdefault(study.short(name), {})[budget] = each
    if "score" not in whole[0].scores:
        nearest = sorted(found.values(), key=lambda each: each.scores["kl"].mean)
        return _fidelity_table(nearest, study)
    there = {budget for found_by in rows.values() for budget in found_by}
    budgets = [each for each in part.budgets.split(",") if each in there]
    texts = [_stores_table(whole), _budget_table(rows, budgets)]
    if division:
        texts.append(_divided(study, run, division))
    return "\n\n".join(texts)


def _stores_table(found: Sequence[MethodSummary]) -> str:
    rows = [[f"`{each.method}`", f"{100 * each.held_share:.0f} %", score_cell(each)] for each in found]
    return markdown_table(["the whole cache", "bytes", "score"], rows)


def _budget_table(rows: dict[str, dict[str, MethodSummary]], budgets: Sequence[str]) -> str:
    ordered = sorted(rows.items(), key=lambda row: -sum(each.scores["score"].mean for each in row[1].values()))
    body = [
        [f"`{name}`", *(score_cell(found[each]) if each in found else "–" for each in budgets)]
        for name, found in ordered
    ]
    return markdown_table(["method", *budgets], body)


def _divided(study: Study, run: Run, division: Division) -> str:
    """Mean scores under one budget, and of the full cache, by what examples differ in."""
    columns = list(dict.fromkeys(map(division.column, run.rows)))
    means: dict[str, dict[str, float]] = {}
    for method, found in rows_by(run.rows, lambda row: row.method).items():
        name, budget = method_and_budget(method)
        if method == "full" or budget == division.budget:
            divided = rows_by(found, division.column)
            means[study.short(name)] = {
                column: fmean(row.scores[row.measure] for row in rows) for column, rows in divided.items()
            }
    ordered = sorted(means.items(), key=lambda each: -fmean(each[1].values()))
    body = [[f"`{name}`", *(f"{100 * found[column]:.0f}" for column in columns)] for name, found in ordered]
    return f"At {division.budget}, {division.title}:\n\n{markdown_table(['method', *columns], body)}"


def _fidelity_table(found: Sequence[MethodSummary], study: Study) -> str:
    rows = [
        [
            f"`{study.short(each.method)}`",
            f"{100 * each.held_share:.0f} %",
            f"{exp(each.scores['nll'].mean):.3f}",
            f"{each.scores['kl'].mean:.4f}",
            f"{100 * each.scores['agreement'].mean:.1f} %",
        ]
        for each in found
    ]
    return markdown_table(["method", "bytes", "perplexity", "KL from the full cache", "same next token"], rows)
