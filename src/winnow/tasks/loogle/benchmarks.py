"""LooGLE as benchmarks: with its own prompts, and the four tasks that HeadKV makes of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from winnow.tasks.benchmark import Benchmark, BenchmarkError, Request, asked_tasks
from winnow.tasks.example import Example, Judging, Task
from winnow.tasks.longbench.forms import Row
from winnow.tasks.loogle.asked import Asked, asked
from winnow.tasks.records import Folder, OnHub, checked, open_folder, records
from winnow.tasks.sampling import sampled

_HUB = OnHub("bigai-nlco/LooGLE", ("data/*.jsonl",))
_SOURCE = "Li et al. 2023, arXiv 2311.04939"
DATA = "a folder with LooGLE's longdep_qa.jsonl, shortdep_qa.jsonl, shortdep_cloze.jsonl and summarization.jsonl"
HEADKV_DATA = "a folder with LooGLE's longdep_qa.jsonl, or with HeadKV's computation.jsonl and its three others"

_QUESTION = "Please answer the question based on the long texts below. \n{input}\nQuestion: {Q}\nAnswer: "
_HEADKV_QUESTION = _QUESTION.rstrip(" ")
_CLOZE = (
    "Please fill in the clozes based on the given long texts below. Each of the placeholder '<mask-n>' in the question "
    "could be an entity of Person, Location or Organiocation. The same masks represent the same entity. Output a json "
    "format answer, for example: {'<mask-0>': 'Bob', '<mask-1>': 'Gorrosion Magazine','<mask-2>': 'Bethel Horizon'}\n"
    "{input}\n Question: {Q} What are the masked entities? \nAnswer:"
)
_SUMMARY = "Please generate a summary of the below paper. \n{input}\n Summarization: "


class Definition(NamedTuple):
    """A task: files task2prompt.json and task2maxlen.json of bigai-nlco/LooGLE; HeadKV's run_longbench.py."""

    summary: str
    files: tuple[str, ...]
    """Names of its file; the first that there is."""
    template: str
    max_new_tokens: int
    metric: str


TASKS = {
    "shortdep_qa": Definition("questions that one place answers", ("shortdep_qa",), _QUESTION, 300, "token_f1"),
    "longdep_qa": Definition("questions that several places answer", ("longdep_qa",), _QUESTION, 500, "token_f1"),
    "longdep_summarization": Definition(
        "abstract of a scientific article", ("longdep_summarization", "summarization"), _SUMMARY, 500, "rouge_l"
    ),
    "shortdep_cloze": Definition(
        "masked names of a summary; share of them that the answer has", ("shortdep_cloze",), _CLOZE, 50, "contains_all"
    ),
}

HEADKV_EXAMPLES = 100
"""Drawn from LooGLE's questions of each kind."""

HEADKV_TASKS = {
    name: Definition(summary, (name, "longdep_qa"), _HEADKV_QUESTION, longest, "token_f1")
    for name, summary, longest in (
        ("comprehension_and_reasoning", "Doc.QA: questions that need several places and a conclusion", 64),
        ("multiple_information_retrieval", "Info.Retrieval: facts from several places", 64),
        ("timeline_reorder", "Timeline: the order of events", 32),
        ("computation", "Computation: a number that several places give", 32),
    )
}


def _load(
    request: Request,
    benchmark: str,
    definitions: Mapping[str, Definition],
    data: str,
    read: Callable[[Folder, Sequence[str], str], list[Asked]],
    most: int | None,
) -> list[Task]:
    names = asked_tasks(request, benchmark, definitions)
    folder = open_folder(request, benchmark, data, _HUB)
    files = {name: _files(folder, definitions[name]) for name in names}
    if missing := [name for name in names if not files[name] and request.tasks]:
        raise BenchmarkError(f"{folder.path} has no file of {', '.join(missing)}: give --data with {data}.")
    if not any(files.values()):
        raise BenchmarkError(f"{folder.path} has no file of a task of {benchmark}: give --data with {data}.")
    count = most if request.examples is None else request.examples
    tasks = []
    for name, found in files.items():
        definition = definitions[name]
        examples = [_example(definition, each) for each in (read(folder, found, name) if found else ())]
        judging = Judging(definition.metric, definition.max_new_tokens)
        tasks.append(Task(benchmark, name, judging, sampled(examples, count, request.seed)))
    return [task for task in tasks if task.examples]


def _files(folder: Folder, definition: Definition) -> list[str]:
    return next((found for name in definition.files if (found := folder.of_task(name))), [])


def _read(folder: Folder, files: Sequence[str], task: str) -> list[Asked]:
    return asked([record for file in files for record in records(folder, file)])


def _read_kind(folder: Folder, files: Sequence[str], task: str) -> list[Asked]:
    """Questions of one kind: HeadKV's files have LongBench's form and one kind each, LooGLE's has all."""
    found = [record for file in files for record in records(folder, file)]
    if folder.of_task(task) == list(files):
        rows = [checked(Row, record) for record in found]
        return [Asked(row._id, row.context, row.input, tuple(row.answers), task) for row in rows]
    return [each for each in asked(found) if each.kind == task]


def _example(definition: Definition, each: Asked) -> Example:
    before, after = definition.template.split("{input}")
    return Example(
        name=each.name,
        context=before + each.document,
        question=after.replace("{Q}", each.question),
        answers=each.answers,
        facts={"kind": each.kind} if each.kind else {},
    )


LOOGLE = Benchmark(
    name="loogle",
    summary="questions about documents of more than 24k tokens, and summaries of these",
    source=_SOURCE,
    tasks={name: definition.summary for name, definition in TASKS.items()},
    load=partial(_load, benchmark="loogle", definitions=TASKS, data=DATA, read=_read, most=None),
    data=DATA,
)

LOOGLE_HEADKV = Benchmark(
    name="loogle-headkv",
    summary="LooGLE's long-dependency questions as four tasks, as in HeadKV and ApertureKV",
    source=f"{_SOURCE}; Fu et al. 2024, arXiv 2410.19258",
    tasks={name: definition.summary for name, definition in HEADKV_TASKS.items()},
    load=partial(
        _load,
        benchmark="loogle-headkv",
        definitions=HEADKV_TASKS,
        data=HEADKV_DATA,
        read=_read_kind,
        most=HEADKV_EXAMPLES,
    ),
    data=HEADKV_DATA,
    groups={"long dependency QA": tuple(HEADKV_TASKS)},
)
