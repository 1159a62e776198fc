"""Picture of a part of a study on pretrained models."""

from __future__ import annotations

from pathlib import Path

from evaluated import Part, Study
from winnow.report.accuracy import Line, draw_accuracy
from winnow.runs.rows import method_and_budget
from winnow.runs.summary import summaries


def draw(study: Study, part: Part, path: Path, title: str) -> None:
    """Scores against budgets, a line for every method that writes slots as they are; nothing where no run is."""
    run = study.run(part)
    if run is None:
        return
    lines: dict[str, list[tuple[float, float]]] = {}
    full = None
    for each in summaries(run.rows):
        name, budget = method_and_budget(each.method)
        if each.method == "full":
            full = each.scores["score"].mean
        elif budget and "bits" not in name and "kivi" not in name:
            lines.setdefault(study.short(name).partition("(")[0], []).append(
                (round(each.slots), each.scores["score"].mean)
            )
    draw_accuracy(
        path,
        [Line(name, sorted(points)) for name, points in lines.items()],
        f"{study.title}: {title}",
        part.title,
        full=full,
        prompt_tokens=sum(row.prompt_tokens for row in run.rows) / len(run.rows),
    )
