"""Answers and continuations under the settings of the papers' tables: runs of `winnow eval`, and tables of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import winnow
from claims import BUDGETS, CLAIMS, Claim
from evaluated import Part, Study, about, score_cell
from reporting import markdown_table
from winnow.runs.summary import MethodSummary, summaries

_BUDGETS = BUDGETS.split(",")


def section(study: Study, parts: Sequence[Part]) -> str:
    """The tables of a model, of the parts that were run."""
    runs = study.runs(parts)
    words = [f"{part.title[0].upper()}{part.title[1:]}: {about(run)}" for part, run in runs.items()]
    found = {part.name: {each.method: each for each in summaries(run.rows)} for part, run in runs.items()}
    tables = [f"#### {claim.title}\n\nPaper: {claim.source}.\n\n{_table(claim, found)}" for claim in CLAIMS]
    return "\n\n".join([*words, _whole(found), *tables])


def _whole(found: Mapping[str, Mapping[str, MethodSummary]]) -> str:
    answers = found.get("answers", {})
    score = f"Full cache: {score_cell(answers['full'])} of 100. " if "full" in answers else ""
    return f"{score}KL: nats from the full cache's next token, less is better."


def _table(claim: Claim, found: Mapping[str, Mapping[str, MethodSummary]]) -> str:
    columns = [(name, budget) for name in found for budget in _BUDGETS]
    body = []
    for setting in claim.settings:
        texts = {budget: str(winnow.method(setting.method, budget)) for budget in _BUDGETS}
        cells = [_cell(found[name].get(texts[budget])) for name, budget in columns]
        paper = "–" if setting.paper is None else f"{setting.paper:.2f}"
        body.append([setting.label, f"`{setting.method}`", paper, *cells])
    head = [f"{'score' if name == 'answers' else 'KL'} at {budget}" for name, budget in columns]
    return markdown_table(["setting", "method", "paper", *head], body)


def _cell(found: MethodSummary | None) -> str:
    if found is None:
        return "–"
    return score_cell(found) if "score" in found.scores else f"{found.scores['kl'].mean:.4f}"
