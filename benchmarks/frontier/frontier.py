"""The frontier of bytes and answers: every way to write, to choose and to divide slots, on models that the user names.

    python benchmarks/frontier/frontier.py MODEL [MODEL …]
    python benchmarks/frontier/frontier.py "TITLE=MODEL" --sections bits,budgets --runs DIR

MODEL: a directory, a GGUF file or a hub name; TITLE=MODEL gives it another title on the page. A stopped run goes on
where it was.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from math import expm1
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from evaluated import (
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
from lists import CURVES, ESTIMATED, SECTIONS, Section
from reporting import markdown_table, resumable, write_results
from winnow.runs.folder import Run
from winnow.runs.summary import MethodSummary, summaries

Found = dict[str, MethodSummary]
"""By the method's text."""


def run(study: Study, sections: Sequence[Section], questions: int, texts: int) -> None:
    """Estimates budget curves and evaluates what is missing."""
    study.begin()
    write_reference(study)
    for section in sections:
        if section.follows_curves and not (study.folder / CURVES).exists():
            run_command("heads", "curves", "--model", study.model, *ESTIMATED, "--out", str(study.folder / CURVES))
        for part in section.runs(questions, texts):
            evaluate(study, part)


def section_text(study: Study, section: Section, runs: dict[Part, Run]) -> str:
    """Title, machine and table of a section."""
    words = [f"{part.title[0].upper()}{part.title[1:]}: {about(run)}" for part, run in runs.items()]
    found = {part.title: {each.method: each for each in summaries(run.rows)} for part, run in runs.items()}
    return "\n\n".join([f"### {section.title}", *words, _table(study, found)])


def best(found: Found) -> set[str]:
    """Methods that no other beats: none has as good a score in fewer bytes, or a better one in as many."""
    scored = {name: (each.held_bytes, -each.scores["score"].mean) for name, each in found.items()}
    return {
        name
        for name, own in scored.items()
        if not any(other != own and all(a <= b for a, b in zip(other, own, strict=True)) for other in scored.values())
    }


def _table(study: Study, found: dict[str, Found]) -> str:
    """A row for every method, most bytes first, then the best; bytes are those of the first part that has it."""
    merged = {name: each for part in reversed(found.values()) for name, each in part.items()}
    answers = next((part for part in found.values() if _scored(part)), {})
    leading = best(answers)
    rows = sorted(merged.items(), key=lambda row: (-round(row[1].held_share, 3), -_score(answers, row[0])))
    body = [
        [
            f"`{study.short(name)}`",
            f"{100 * each.held_share:.1f} %",
            f"{1 / each.held_share:.1f}x",
            *(cell for part in found.values() for cell in _cells(part.get(name), part["full"])),
            "yes" if name in leading else "",
        ]
        for name, each in rows
    ]
    heads = [head for title, part in found.items() for head in _heads(title, _scored(part))]
    return markdown_table(["method", "bytes", "fewer", *heads, "unbeaten"], body)


def _score(answers: Found, name: str) -> float:
    return answers[name].scores["score"].mean if name in answers else 0.0


def _scored(found: Found) -> bool:
    return "score" in found["full"].scores


def _heads(title: str, scored: bool) -> list[str]:
    return [f"score, {title}"] if scored else [f"perplexity, {title}", "KL"]


def _cells(found: MethodSummary | None, full: MethodSummary) -> list[str]:
    """Score with its interval; or the change of the perplexity in percent, and the KL in nats."""
    scored = "score" in full.scores
    if found is None:
        return ["–"] if scored else ["–", "–"]
    if scored:
        return [score_cell(found)]
    change = expm1(found.scores["nll"].mean - full.scores["nll"].mean)
    return [f"{100 * change:+.2f} %", f"{found.scores['kl'].mean:.4f}"]


def page(studies: Sequence[Study], questions: int, texts: int) -> str:
    """The page, of all sections that were run."""
    body = []
    for study in studies:
        runs = [(section, study.runs(section.runs(questions, texts))) for section in SECTIONS]
        body += [f"## {study.title}", *(section_text(study, section, found) for section, found in runs if found)]
    head = (
        "# The frontier of bytes and answers\n\nGreedy answers, scores from 0 to 100, intervals at 95 %; perplexity "
        "against that of the full cache, KL in nats from its next token. Bytes are all that a cache holds between the "
        "prompt and the answer, room for the answer's first tokens included, as a share of transformers' own cache. "
        "*Unbeaten*: no other method of the table has as good a score in fewer bytes.\n\n"
        "Regenerate with `python benchmarks/frontier/frontier.py MODEL … --questions N --texts N`, with as many as the "
        "tables tell (hours on two cores, resumable). Six questions share a text: where there are six texts or fewer, "
        "intervals are too narrow."
    )
    return "\n\n".join([head, *body]) + "\n"


def main() -> None:
    """Evaluates what is missing, then writes the page."""
    names = [section.name for section in SECTIONS]
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="+", metavar="MODEL", help="directory, file or hub name, or TITLE=MODEL")
    parser.add_argument("--sections", default=",".join(names), metavar="LIST", help=f"of {', '.join(names)}")
    parser.add_argument("--runs", type=Path, default=ROOT / "build" / "frontier", help="folder of all runs")
    parser.add_argument("--questions", type=int, default=24, help="that are answered under every method")
    parser.add_argument("--texts", type=int, default=8, help="whose continuation is predicted under every method")
    parser.add_argument("--page-only", action="store_true", help="write the page from the runs that are there")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the page")
    options = parser.parse_args()
    wanted = options.sections.split(",")
    if unknown := [name for name in wanted if name not in names]:
        parser.error(f"no section {', '.join(unknown)}; there are {', '.join(names)}")
    studies = studies_of(options.models, options.runs)
    chosen = [section for section in SECTIONS if section.name in wanted and not options.page_only]
    for study in studies if chosen else ():
        run(study, chosen, options.questions, options.texts)
    text = page(studies, options.questions, options.texts)
    parts = [part for section in SECTIONS for part in section.runs(options.questions, options.texts)]
    write_results(options.results, "frontier", text, [record for study in studies for record in records(study, parts)])
    print(text)


if __name__ == "__main__":
    resumable(main)
