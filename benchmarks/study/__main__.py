"""Accuracy, coverage and head overlap of every method on the bundled model, at budgets from 16 to 256.

    python benchmarks/study                # everything; writes docs/results/study.* and docs/pictures/study.png

Knobs (HeadKV's beta, CoKV's alpha, K-VEC's delta and lambda, ApertureKV's lambda) are tuned on documents of their own
first. Results are journaled after every document: a run that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import winnow
from answers import ANSWERS, Answering, Asked, answer_findings
from journaled import DocumentJournal
from kept import KEPT_FINDINGS, Keeping
from picture import draw
from reporting import machine, markdown_table, resumable, software, write_results
from settings import (
    BUDGETS,
    FIXED,
    HALVES,
    LOOKED_INTO,
    MAX_NEW_TOKENS,
    MEASURED,
    PICTURES,
    QUESTIONS_PER_KIND,
    RESULTS,
    ROOT,
    TEST,
    TOKENS,
    TUNED_AT,
    VALIDATION,
    candidates,
    without_budget,
)
from tables import Cell, accuracy_table, halves_table, kept_table, layers_table, task_table, unbudgeted_table
from winnow import Method
from winnow.bundled import MODEL_PATH
from winnow.estimate.journal import Journal
from winnow.models import load_model, open_model
from winnow.tasks import QUESTION_KINDS

COLUMNS = [str(budget) for budget in BUDGETS]


class Study:
    """Questions and measures, on one model."""

    def __init__(self, journal: Path) -> None:
        source = open_model(MODEL_PATH)
        model = load_model(source, "cpu", "float32")
        protocol = {"tokens": TOKENS, "questions_per_kind": QUESTIONS_PER_KIND, "answer_tokens": MAX_NEW_TOKENS}
        asked = Asked(**protocol)
        tasks = {ANSWERS: answer_findings(asked), **KEPT_FINDINGS}
        opened = DocumentJournal(Journal.open(journal, protocol | software()), tasks, (*VALIDATION, *TEST))
        self.answering = Answering(model, source.tokenizer, opened, asked)
        self.keeping = Keeping(model, source.tokenizer, opened)

    def tune(self) -> tuple[dict[str, str], str]:
        """The best setting of every tuned method on the validation documents, and the table of all settings."""
        settings = candidates()
        methods = [winnow.method(name, budget) for names in settings.values() for name in names for budget in TUNED_AT]
        tallies = self.answering.tally("Tuning on validation documents", VALIDATION, methods)
        chosen, body = {}, []
        for method, names in settings.items():
            means = {}
            for name in names:
                found = [tallies[str(winnow.method(name, budget))].accuracy for budget in TUNED_AT]
                means[name] = sum(found) / len(found)
            chosen[method] = max(means, key=lambda name: means[name])
            for name, mean in means.items():
                body.append([f"`{name}`", f"{100 * mean:.1f} %", "chosen" if name == chosen[method] else ""])
        return chosen, markdown_table(["setting", f"mean at {', '.join(map(str, TUNED_AT))}", ""], body)

    def measure(self, title: str, names: dict[str, list[Method]]) -> dict[str, list[Cell]]:
        """Every method on the test documents."""
        methods = [method for row in names.values() for method in row]
        answers = self.answering.tally(f"{title}: answers", TEST, methods)
        kept = self.keeping.measure(f"{title}: what is kept", MEASURED, methods)
        return {name: [Cell(answers[str(m)], kept[str(m)]) for m in row] for name, row in names.items()}


def at_budgets(names: dict[str, str]) -> dict[str, list[Method]]:
    """A method for every budget."""
    return {name: [winnow.method(text, budget) for budget in BUDGETS] for name, text in names.items()}


def best_first(rows: dict[str, list[Cell]]) -> dict[str, list[Cell]]:
    """Methods by their mean accuracy over the budgets."""
    return dict(sorted(rows.items(), key=lambda row: -sum(cell.answers.accuracy for cell in row[1])))


def report(
    chosen: dict[str, str],
    tuning: str,
    rows: dict[str, list[Cell]],
    halves: dict[str, list[Cell]],
    layers: dict[str, list[float]],
    own: dict[str, Cell],
) -> str:
    """The whole page."""
    full = own["full"].answers
    settings = ", ".join(f"`{name}`" for name in chosen.values())
    parts = [
        f"Bundled model, {len(TEST)} generated documents of at most {TOKENS} tokens, {full.questions} questions "
        f"({full.questions // len(QUESTION_KINDS)} of each task), greedy answers, exact match, question and first "
        f"words of its answer visible at compression, window 8 for all. Full "
        f"cache: {100 * full.accuracy:.1f} %. {machine()}",
        "Regenerate with `python benchmarks/study`; how to read it is told in [docs/study.md](../study.md).",
        f"Tuned on {len(VALIDATION)} other documents: {settings}.",
        f"## Accuracy, all questions (95 % interval)\n\n{accuracy_table(rows, COLUMNS)}",
        "## Accuracy by task (95 % interval)\n\n"
        + "\n\n".join(task_table(rows, COLUMNS, kind) for kind in QUESTION_KINDS),
        f"## What is kept\n\nOn {len(MEASURED)} of the documents, one question of each task: coverage (share of the "
        "prompt kept by any head of any layer) · mean intersection over union of the kept sets of head pairs · share "
        "of the answer's fact tokens that a head keeps.\n\n" + kept_table(rows, COLUMNS),
        "## Halves of K-VEC and ApertureKV\n\nSettings of the papers: **accuracy** · coverage · overlap · "
        "facts.\n\n" + halves_table(halves, COLUMNS),
        f"## Facts by layer\n\nShare of the answer's fact tokens that a head of each layer keeps, at {BUDGETS[-1]} "
        f"slots per head on average.\n\n{layers_table(layers)}",
        f"## Methods that set their own total\n\n{unbudgeted_table(own)}",
        f"## Tuning\n\n{tuning}",
    ]
    return "# Study on the bundled model\n\n" + "\n\n".join(parts) + "\n"


def records(rows: dict[str, list[Cell]]) -> list[dict[str, Any]]:
    """For programs."""
    return [
        {
            "method": name,
            "budget": budget,
            "right": dict(cell.answers.right),
            "asked": dict(cell.answers.asked),
            **cell.kept._asdict(),
        }
        for name, row in rows.items()
        for budget, cell in zip(BUDGETS, row, strict=True)
    ]


def main() -> None:
    """Tune, measure, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--journal", type=Path, default=ROOT / "build" / "study.jsonl")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    args = parser.parse_args()
    journal = args.journal.resolve()
    os.chdir(ROOT)  # the name of a score file is part of a method's name
    torch.set_num_threads(1)
    study = Study(journal)
    chosen, tuning = study.tune()
    rows = best_first(study.measure("Methods", at_budgets({name: name for name in FIXED} | chosen)))
    halves = study.measure("Halves", at_budgets(HALVES))
    looked_into = {name: winnow.method({**chosen, "snapkv": "snapkv"}[name], BUDGETS[-1]) for name in LOOKED_INTO}
    facts = study.keeping.facts_by_layer("Facts by layer", MEASURED, looked_into.values())
    layers = {name: facts[str(method)] for name, method in looked_into.items()}
    unbudgeted = {name: [winnow.method(text)] for name, text in {"full": "full", **without_budget()}.items()}
    own = {name: row[0] for name, row in study.measure("Own totals", unbudgeted).items()}
    write_results(args.out, "study", report(chosen, tuning, rows, halves, layers, own), records(rows))
    asked = own["full"].answers.questions
    subtitle = (
        f"bundled model, {asked} questions on prompts of about {TOKENS} tokens; bands: 95 % intervals; "
        "dashed: full cache"
    )
    draw(PICTURES / "study.png", rows, BUDGETS, own["full"], "Accuracy and coverage against budget", subtitle)
    print(accuracy_table(rows, COLUMNS))


if __name__ == "__main__":
    resumable(main)
