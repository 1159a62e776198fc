"""MATH (Hendrycks et al. 2021, arXiv 2103.03874): problems of competitions, whose answers are expressions."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from winnow.metrics.stated import boxed
from winnow.tasks.benchmark import Benchmark, BenchmarkError, Request, asked_tasks
from winnow.tasks.example import Judging, Task
from winnow.tasks.mathematics.prompts import FOUR_EXAMPLES, REASONING, Problem
from winnow.tasks.mathematics.tasks import Definition, tasks_of
from winnow.tasks.records import OnHub, Record, checked, open_folder, records

DATA = "MATH's folder test (one JSON file for each problem), or the test.jsonl of MATH-500"
_HUB = OnHub("HuggingFaceH4/MATH-500", ("test.jsonl",))
_JUDGING = Judging("math_answer", max_new_tokens=1024)

TASKS = {
    "math": Definition("competition problems, with an instruction to reason step by step", REASONING),
    "math_4shot": Definition("the same after four worked examples", FOUR_EXAMPLES),
}


@dataclass(frozen=True)
class _Row:
    """A problem of MATH, or of MATH-500, which names some fields otherwise."""

    problem: str
    solution: str
    level: str | int
    type: str | None = None
    subject: str | None = None
    answer: str | None = None


def _load(request: Request) -> list[Task]:
    names = asked_tasks(request, "math", TASKS)
    folder = open_folder(request, "math", DATA, _HUB)
    files = folder.all_files()
    # The original archive has problems to train with beside those of the test.
    tests = [file for file in files if "test" in Path(file).parts or Path(file).stem.startswith("test")]
    found = [record for file in tests or files for record in records(folder, file)]
    problems = [_problem(number, record) for number, record in enumerate(found, start=1)]
    return tasks_of("math", problems, TASKS, names, _JUDGING, request)


def _problem(number: int, record: Record) -> Problem:
    row = checked(_Row, record)
    answer = row.answer if row.answer is not None else boxed(row.solution)
    if not answer:
        raise BenchmarkError(f"{record.place}: solution must have its answer in \\boxed{{}}, and has none.")
    subject = row.subject or row.type
    if subject is None:
        raise BenchmarkError(f'{record.place}: there is no "type".')
    return Problem(str(number), row.problem, answer, {"subject": subject, "level": _level(row.level)})


def _level(found: str | int) -> int | str:
    """The number of "Level 5"; a few problems have none."""
    digits = re.search(r"\d+", str(found))
    return int(digits[0]) if digits else str(found)


MATH = Benchmark(
    name="math",
    summary="competition mathematics problems, answered step by step",
    source="Hendrycks et al. 2021, arXiv 2103.03874",
    tasks={name: definition.summary for name, definition in TASKS.items()},
    load=_load,
    data=DATA,
)
