"""Runs of `winnow eval` on models that the user names: what the studies on pretrained models have in common."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any, NamedTuple

from reporting import threads
from winnow.cli import main as winnow_command
from winnow.estimate.journal import fingerprint
from winnow.files import read_text, write_text
from winnow.models.gguf import SUFFIX, stem
from winnow.runs.folder import ABOUT, Run, RunError, read_run
from winnow.runs.summary import MethodSummary, summaries

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "results"
PICTURES = ROOT / "docs" / "pictures"
REFERENCE = "reference.txt"
"""The text whose continuation is predicted: a file of this name in the folder of a study."""
MODEL = "model.txt"
"""The model that all findings are about: a file of this name in the folder of a study."""

SIDE_BY_SIDE = ("--together", "64")
"""All methods of a part in one batch: nothing here is timed."""


class Part(NamedTuple):
    """One run of `winnow eval`."""

    name: str
    title: str
    arguments: tuple[str, ...]
    """Arguments of `winnow eval`, but for model, methods, budgets and folder; {folder} is the folder of the study."""
    methods: tuple[str, ...]
    budgets: str


class Study(NamedTuple):
    """A model and the folder of all that is found about it."""

    title: str
    model: str
    folder: Path

    @classmethod
    def of(cls, name: str, runs: Path) -> Study:
        """The study of MODEL or TITLE=MODEL, in a folder of its own in `runs`."""
        title, _, model = name.rpartition("=")
        if not _is_path(model):
            return cls(title or model, model, runs / model.replace("/", "--"))
        # Not resolved: behind a link is often a hash.
        short = stem(os.path.abspath(os.path.expanduser(model)))
        # Checkpoints of several trainings are called alike.
        return cls(title or short, model, runs / f"{short}-{fingerprint(_identity(model))[:8]}")

    @property
    def identity(self) -> str:
        """The model, wherever a command is given: its resolved path, or its name on the hub."""
        return _identity(self.model)

    def check(self) -> None:
        """Raises RunError where the folder holds findings about another model."""
        path = self.folder / MODEL
        if path.exists():
            known = read_text(path).strip()
            if known != self.identity:
                raise RunError(
                    f"{self.folder} holds findings about {known}, not {self.identity}: give another --runs, or move "
                    "that folder away."
                )
        elif self.folder.exists() and any(self.folder.iterdir()):
            raise RunError(
                f"{self.folder} holds findings, and no {MODEL} tells about which model: give another --runs, or move "
                f"that folder away; where they are about {self.identity}, write that name into {path}."
            )

    def begin(self) -> None:
        """Makes the folder and writes down whose it is. Raises RunError as `check`."""
        self.check()
        self.folder.mkdir(parents=True, exist_ok=True)
        write_text(self.folder / MODEL, f"{self.identity}\n")

    def run(self, part: Part) -> Run | None:
        """The run of a part, or None where it has no rows yet."""
        folder = self.folder / part.name
        run = read_run(folder) if (folder / ABOUT).exists() else None
        return run if run and run.rows else None

    def runs(self, parts: Sequence[Part]) -> dict[Part, Run]:
        """The runs of those parts that have rows."""
        return {part: run for part in parts if (run := self.run(part))}

    def short(self, method: str) -> str:
        """A method's name without the folder of its scores."""
        return method.replace(f"{self.folder}/", "")


def studies_of(names: Sequence[str], runs: Path) -> list[Study]:
    """The study of every MODEL or TITLE=MODEL.

    Raises RunError where a folder holds findings about another model, or a page could not tell two models apart.
    """
    studies = [Study.of(name, runs) for name in names]
    for study in studies:
        study.check()
    for title, count in Counter(study.title for study in studies).items():
        if count > 1:
            raise RunError(f"{count} models have the title {title}: give each another one, as TITLE=MODEL.")
    return studies


def _identity(model: str) -> str:
    return os.path.realpath(os.path.expanduser(model)) if _is_path(model) else model


def _is_path(model: str) -> bool:
    """True for what is a file or directory, or was one when its runs were made; else it is a name on the hub."""
    there = os.path.exists(os.path.expanduser(model))
    return there or model.startswith((".", "/", "~")) or model.count("/") > 1 or model.lower().endswith(SUFFIX)


def evaluate(study: Study, part: Part, values: Mapping[str, object] | None = None, workers: int = 1) -> None:
    """Evaluates what is missing of a part. Ends the program where that fails.

    values: by name, for what stands in braces in methods besides {folder}; workers: processes, each with the model.
    """
    methods = ",".join(each.format(folder=study.folder, **(values or {})) for each in part.methods)
    arguments = [each.format(folder=study.folder) for each in part.arguments]
    given = ["--model", study.model, "--methods", methods, "--budgets", part.budgets]
    crew = ("--executor", "processes", "--workers", str(workers)) if workers > 1 else ()
    run_command("eval", *arguments, *given, *SIDE_BY_SIDE, *crew, "--out", str(study.folder / part.name))


def run_command(*arguments: str) -> None:
    """Runs a command of winnow, in this process. Ends the program where it fails."""
    print(" ".join(["winnow", *arguments]), flush=True)
    if code := winnow_command(arguments):
        sys.exit(code)


def reference() -> str:
    """Python's own reference, a real text that every machine has; another version of Python has another one."""
    return "\n\n".join(topics[name] for name in sorted(topics))


def write_reference(study: Study) -> None:
    """Writes the reference into the study's folder."""
    write_text(study.folder / REFERENCE, reference())


def about(run: Run) -> str:
    """A line on examples, prompts, protocol and machine of a run."""
    around, rows = run.environment, run.rows
    mean = sum(row.prompt_tokens for row in rows) / len(rows)
    examples = len({(row.task, row.example) for row in rows})
    return (
        f"{examples} examples, prompts of {mean:,.0f} tokens, protocol `{run.about.protocol['name']}`, "
        f"{run.about.model.dtype}. Measured on {_place(around)}, torch "
        f"{around['torch']}, transformers {around['transformers']}, winnow {around['winnow']}."
    )


def _place(environment: Mapping[str, str]) -> str:
    """The device in words: a GPU's name, or the processor and its threads."""
    if environment["device"] == "cpu":
        return f"{environment['processor']}, {threads(environment['threads'])}"
    return f"an {environment['device']}"


def score_cell(found: MethodSummary) -> str:
    """The score from 0 to 100, with its interval."""
    score = found.scores["score"]
    return f"{100 * score.mean:.0f} ({100 * score.low:.0f}–{100 * score.high:.0f})"


def records(study: Study, parts: Sequence[Part]) -> list[dict[str, Any]]:
    """Findings under every method, for programs."""
    return [
        {"model": study.title, "part": part.name, "processor": run.about.environment["processor"]}
        | {**vars(each), "scores": {name: score._asdict() for name, score in each.scores.items()}}
        | {"method": study.short(each.method)}
        for part, run in study.runs(parts).items()
        for each in summaries(run.rows)
    ]
