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
from pydoc_data.topics import topics
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from reporting import markdown_table, write_results
from scope import COALITIONS, KNOBS, NEEDLES, PARTS, PICTURES, QUESTIONS, RESULTS, ROOT, TUNING, Part
from winnow.cli import main as winnow_command
from winnow.files import write_text
from winnow.models import open_model
from winnow.report.accuracy import Line, draw_accuracy
from winnow.runs.folder import ABOUT, Run, read_run
from winnow.runs.rows import method_and_budget
from winnow.runs.summary import MethodSummary, summaries
from winnow.tasks.benchmark import Request
from winnow.tasks.registry import benchmark


class Study(NamedTuple):
    """A model and the folder of all that is found about it."""

    title: str
    model: str
    folder: Path


def run(study: Study, parts: Sequence[Part]) -> None:
    """Estimates head scores and evaluates what is missing."""
    study.folder.mkdir(parents=True, exist_ok=True)
    _write_inputs(study)
    needle, cokv = study.folder / "headkv-er.safetensors", study.folder / "cokv.safetensors"
    if not needle.exists():
        _command("heads", "needle", "--model", study.model, *NEEDLES, "--out", str(needle))
    if not cokv.exists():
        examples = str(study.folder / "questions.jsonl")
        _command("heads", "cokv", "--model", study.model, "--examples", examples, *COALITIONS, "--out", str(cokv))
    knobs = {method: _tuned(study, method) for method in ("headkv-er", "cokv")}
    for part in parts:
        methods = ",".join(each.format(folder=study.folder, **knobs) for each in part.methods)
        arguments = [each.format(folder=study.folder) for each in part.arguments]
        given = ["--model", study.model, "--methods", methods, "--budgets", part.budgets]
        _command("eval", *arguments, *given, "--out", str(study.folder / part.name))


def _tuned(study: Study, method: str) -> float:
    """The value of a method's knob, chosen on questions about documents of their own."""
    chosen = study.folder / f"{method}.json"
    if not chosen.exists():
        scores, examples = str(study.folder / f"{method}.safetensors"), str(study.folder / "tuning.jsonl")
        given = ["--method", method, "--scores", scores, "--examples", examples]
        _command("heads", "tune", "--model", study.model, *given, *KNOBS, "--out", str(chosen))
    return float(json.loads(chosen.read_text())["value"])


def _command(*arguments: str) -> None:
    """A command of winnow, in this process. Ends the study where it fails."""
    print(" ".join(["winnow", *arguments]), flush=True)
    if code := winnow_command(arguments):
        sys.exit(code)


def _write_inputs(study: Study) -> None:
    """Questions for CoKV and for the choice of knobs, and the text whose continuation is predicted."""
    tokenizer = open_model(study.model).tokenizer

    def count_tokens(text: str) -> int:
        return len(tokenizer(text, add_special_tokens=False).input_ids)

    for file, (name, seed, count) in (("questions", QUESTIONS), ("tuning", TUNING)):
        (task,) = benchmark(name).load(Request(count_tokens, examples=count, seed=seed))
        asked = [
            {"context": each.context.strip(), "question": each.question, "answer": each.answers[0]}
            for each in task.examples
        ]
        write_text(study.folder / f"{file}.jsonl", "".join(f"{json.dumps(each)}\n" for each in asked))
    write_text(study.folder / "reference.txt", "\n\n".join(topics[name] for name in sorted(topics)))


def page(studies: Sequence[Study]) -> tuple[str, list[dict[str, Any]]]:
    """The page and its records, of the parts that were run."""
    sections, records = [], []
    for study in studies:
        found = [(part, read_run(study.folder / part.name)) for part in PARTS if _ran(study, part)]
        texts = [f"### {part.title}\n\n{_about(run)}\n\n{_tables(study, part, run)}" for part, run in found]
        sections.append("\n\n".join([f"## {study.title}", *texts]))
        records += [
            {"model": study.title, "part": part.name, "processor": run.about.environment["processor"]}
            | {**vars(each), "scores": {name: score._asdict() for name, score in each.scores.items()}}
            | {"method": _short(study, each.method)}
            for part, run in found
            for each in summaries(run.rows)
        ]
    head = (
        "# Pretrained models\n\nGreedy answers, scores from 0 to 100; budgets are shares of the prompt. "
        "Intervals are at 95 %. HeadKV's and CoKV's scores were estimated by the study itself, CoKV's "
        f"from {QUESTIONS[2]} questions about other generated documents; β and α were chosen on {TUNING[2] // 2} "
        "questions more.\n\n"
        "Regenerate with `python benchmarks/pretrained/pretrained.py MODEL …` (hours on two cores, resumable)."
    )
    return "\n\n".join([head, *sections]) + "\n", records


def _ran(study: Study, part: Part) -> bool:
    return (study.folder / part.name / ABOUT).exists()


def _about(run: Run) -> str:
    around, rows = run.about.environment, run.rows
    mean = sum(row.prompt_tokens for row in rows) / len(rows)
    examples = len({(row.task, row.example) for row in rows})
    return (
        f"{examples} examples, prompts of {mean:,.0f} tokens, protocol `{run.about.protocol['name']}`, "
        f"{run.about.model.dtype}. Measured on {around['processor']}, {around['threads']} threads, torch "
        f"{around['torch']}, transformers {around['transformers']}, winnow {around['winnow']}."
    )


def _tables(study: Study, part: Part, run: Run) -> str:
    found = {each.method: each for each in summaries(run.rows)}
    whole = sorted((each for each in found.values() if "@" not in each.method), key=lambda each: -each.held_share)
    rows: dict[str, dict[str, MethodSummary]] = {}
    for each in found.values():
        name, budget = method_and_budget(each.method)
        if budget:
            rows.setdefault(_short(study, name), {})[budget] = each
    if "score" not in whole[0].scores:
        nearest = sorted(found.values(), key=lambda each: each.scores["kl"].mean)
        return _fidelity_table(nearest, study)
    there = {budget for found_by in rows.values() for budget in found_by}
    budgets = [each for each in part.budgets.split(",") if each in there]
    return f"{_stores_table(whole)}\n\n{_budget_table(rows, budgets)}"


def _stores_table(found: Sequence[MethodSummary]) -> str:
    rows = [[f"`{each.method}`", f"{100 * each.held_share:.0f} %", _score(each)] for each in found]
    return markdown_table(["the whole cache", "bytes", "score"], rows)


def _budget_table(rows: dict[str, dict[str, MethodSummary]], budgets: Sequence[str]) -> str:
    ordered = sorted(rows.items(), key=lambda row: -sum(each.scores["score"].mean for each in row[1].values()))
    body = [
        [f"`{name}`", *(_score(found[each]) if each in found else "–" for each in budgets)] for name, found in ordered
    ]
    return markdown_table(["method", *budgets], body)


def _fidelity_table(found: Sequence[MethodSummary], study: Study) -> str:
    rows = [
        [
            f"`{_short(study, each.method)}`",
            f"{100 * each.held_share:.0f} %",
            f"{exp(each.scores['nll'].mean):.3f}",
            f"{each.scores['kl'].mean:.4f}",
            f"{100 * each.scores['agreement'].mean:.1f} %",
        ]
        for each in found
    ]
    return markdown_table(["method", "bytes", "perplexity", "KL from the full cache", "same next token"], rows)


def _score(found: MethodSummary) -> str:
    score = found.scores["score"]
    return f"{100 * score.mean:.0f} ({100 * score.low:.0f}–{100 * score.high:.0f})"


def _short(study: Study, name: str) -> str:
    """A method's name without the folder of its scores."""
    return name.replace(f"{study.folder}/", "")


def draw(studies: Sequence[Study]) -> None:
    """The picture of the first part, for the first model."""
    study, part = studies[0], PARTS[0]
    if not _ran(study, part):
        return
    run = read_run(study.folder / part.name)
    lines: dict[str, list[tuple[float, float]]] = {}
    full = None
    for each in summaries(run.rows):
        name, budget = method_and_budget(each.method)
        if each.method == "full":
            full = each.scores["score"].mean
        elif budget and "bits" not in name and "kivi" not in name:
            lines.setdefault(_short(study, name).partition("(")[0], []).append(
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
    studies = [_study(name, options.runs) for name in options.models]
    for study in [] if options.page_only else studies:
        run(study, wanted)
    text, records = page(studies)
    write_results(RESULTS, "pretrained", text, records)
    draw(studies)
    print(text)


def _study(name: str, runs: Path) -> Study:
    title, _, model = name.rpartition("=")
    short = Path(model).stem
    return Study(title or short, model, runs / short)


if __name__ == "__main__":
    main()
