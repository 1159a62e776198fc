"""LongBench as benchmarks: the official one, LongBench-E, and kvpress' form of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from winnow.tasks.benchmark import Benchmark, BenchmarkError, Request, asked_tasks
from winnow.tasks.example import Example, Judging, Task
from winnow.tasks.longbench.definition import GROUPS, TASKS, WITH_LENGTHS
from winnow.tasks.longbench.forms import Row, judging, kvpress, official
from winnow.tasks.records import Folder, OnHub, Record, checked, open_folder, records, with_unique
from winnow.tasks.sampling import sampled

DATA = "the folder or data.zip of THUDM/LongBench: one TASK.jsonl (or Parquet files) for each task"
_HUB = OnHub("THUDM/LongBench", ("data.zip",))
_SOURCE = "Bai et al. 2023, arXiv 2308.14508"
_KVPRESS_ROOM = 20
"""Tokens by which kvpress' form lets answers be longer."""

Form = Callable[[str, Row], Example]


def _load(
    request: Request, benchmark: str, names: Sequence[str], form: Form, rules: Callable[[str], Judging]
) -> list[Task]:
    """Tasks that are asked for; where none is named, those that the data has."""
    asked = asked_tasks(request, benchmark, names)
    folder = open_folder(request, benchmark, DATA, _HUB)
    files = {name: folder.of_task(name) for name in asked}
    if missing := [name for name in asked if not files[name] and request.tasks]:
        raise BenchmarkError(f"{folder.path} has no file of {', '.join(missing)}: give --data with {DATA}.")
    if not any(files.values()):
        raise BenchmarkError(f"{folder.path} has no file of a task of {benchmark}: give --data with {DATA}.")
    return [
        Task(
            benchmark, name, rules(name), sampled(_examples(folder, found, name, form), request.examples, request.seed)
        )
        for name, found in files.items()
        if found
    ]


def _examples(folder: Folder, files: Sequence[str], name: str, form: Form) -> list[Example]:
    found = [record for file in files for record in records(folder, file)]
    rows = [_row(name.removesuffix("_e"), record) for record in found]
    with_unique(found, lambda record: record.fields["_id"], "_id")
    return [form(name.removesuffix("_e"), row) for row in rows]


def _row(task: str, record: Record) -> Row:
    row = checked(Row, record)
    if not row.answers:
        raise BenchmarkError(f"{record.place}: answers must hold a right answer, and there is none.")
    if TASKS[task].metric == "classification" and not row.all_classes:
        raise BenchmarkError(f"{record.place}: all_classes must name the classes of {task}.")
    return row


def _summaries(names: Sequence[str]) -> dict[str, str]:
    return {name: TASKS[name.removesuffix("_e")].summary for name in names}


def _benchmark(
    name: str, summary: str, names: Sequence[str], form: Form = official, more_tokens: int = 0, ending: str = ""
) -> Benchmark:
    def rules(task: str) -> Judging:
        return judging(task.removesuffix("_e"), more_tokens)

    inside = {group: tuple(task + ending for task in tasks) for group, tasks in GROUPS.items()}
    return Benchmark(
        name=name,
        summary=summary,
        source=_SOURCE,
        tasks=_summaries(names),
        load=partial(_load, benchmark=name, names=names, form=form, rules=rules),
        data=DATA,
        groups={group: tasks for group, tasks in inside.items() if set(tasks) <= set(names)},
    )


LONGBENCH = _benchmark(
    "longbench", "question answering, summaries, few-shot learning and code on long texts", list(TASKS)
)

LONGBENCH_E = _benchmark(
    "longbench-e",
    "13 tasks of LongBench, with equally many examples in each range of lengths",
    [f"{name}_e" for name in WITH_LENGTHS],
    ending="_e",
)

LONGBENCH_KVPRESS = _benchmark(
    "longbench-kvpress",
    "LongBench as in kvpress and SPARK: answers begun after the chat template, 20 more tokens",
    list(TASKS),
    form=kvpress,
    more_tokens=_KVPRESS_ROOM,
)
