"""File: examples of one's own, a JSON object in a line each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

from winnow.errors import closest
from winnow.metrics.registry import DEFAULT_METRIC, METRICS
from winnow.tasks.benchmark import Benchmark, BenchmarkError, Request, asked_tasks
from winnow.tasks.example import LIKELIHOODS, Example, Fact, Judging, Task
from winnow.tasks.records import Record, open_folder, records
from winnow.tasks.sampling import sampled
from winnow.typed import Between, TypedError, read_as

DATA = "a JSONL file, each line an object with context, question and answers"
DEFAULT_NEW_TOKENS = 64
_METRICS = (*METRICS, *LIKELIHOODS)


@dataclass(frozen=True)
class _Line:
    """A line; what may be left out has a default."""

    context: str
    question: str
    answers: str | list[str]
    choices: list[str] | None = None
    answer_prefix: str = ""
    task: str = "file"
    metric: str | None = None
    max_new_tokens: Annotated[int, Between(1, 1_000_000)] | None = None
    chat_template: bool = True
    first_line: bool = False
    name: str | None = None
    facts: dict[str, str | int | float] | None = None


class _Read(NamedTuple):
    record: Record
    line: _Line
    judging: Judging


def _load(request: Request) -> list[Task]:
    """Tasks by the names that lines give them."""
    folder = open_folder(request, "file", DATA)
    found = [_read(record, request) for file in folder.all_files() for record in records(folder, file)]
    tasks: dict[str, list[_Read]] = {}
    for each in found:
        before = tasks.setdefault(each.line.task, [each])
        if before[0].judging != each.judging:
            raise BenchmarkError(
                f"{each.record.place}: metric, max_new_tokens, chat_template and first_line must be those of "
                f"{before[0].record.place}, as both are of the task {each.line.task!r}."
            )
        if before[0] is not each:
            before.append(each)
    return [_task(name, tasks[name], request) for name in asked_tasks(request, "file", tasks)]


def _task(name: str, found: list[_Read], request: Request) -> Task:
    examples: dict[str, Example] = {}
    for number, each in enumerate(found, start=1):
        example = _example(number, each.line)
        if example.name in examples:
            raise BenchmarkError(f"{each.record.place}: an earlier line also has the name {example.name!r}.")
        examples[example.name] = example
    drawn = sampled(list(examples.values()), request.examples, request.seed)
    return Task("file", name, _with_room(found[0].judging, list(examples.values()), request), drawn)


def _with_room(judging: Judging, examples: list[Example], request: Request) -> Judging:
    """Judging of a task, with room behind its prompts for what is read there, if nothing is written."""
    if judging.metric not in LIKELIHOODS:
        return judging
    read = {text for each in examples for text in (each.choices if judging.metric == "choice" else each.answers)}
    return judging._replace(max_new_tokens=max(map(request.count_tokens, read)))


def _read(record: Record, request: Request) -> _Read:
    try:
        line = read_as(_Line, record.fields)
    except TypedError as problem:
        raise BenchmarkError(f"{record.place}: {problem}.") from None
    metric = line.metric or ("choice" if line.choices else DEFAULT_METRIC)
    if fault := _fault(line, metric):
        raise BenchmarkError(f"{record.place}: {fault}")
    if metric == "fidelity" and min(map(request.count_tokens, _answers(line))) < 2:
        raise BenchmarkError(f"{record.place}: fidelity needs answers of at least two tokens.")
    most = line.max_new_tokens or DEFAULT_NEW_TOKENS
    return _Read(record, line, Judging(metric, most, line.chat_template, line.first_line))


def _fault(line: _Line, metric: str) -> str:
    """Faults of a line that types do not tell; empty without one."""
    answers, choices = _answers(line), line.choices or []
    if metric not in _METRICS:
        return f"there is no metric {metric!r}: {closest(metric, _METRICS)}"
    if not line.context.strip():
        return "context is empty; it is what is compressed."
    if not answers or not all(answer.strip() for answer in answers):
        return "answers must hold a right answer, and none that is empty."
    if metric in ("choice", "classification") and not choices:
        return f"{metric} needs choices."
    if metric == "choice" and not set(answers) <= set(choices):
        return "answers must be among the choices."
    if metric == "choice" and (len(set(choices)) < len(choices) or not all(choice.strip() for choice in choices)):
        return "choices must hold each of them once, and none that is empty."
    return ""


def _answers(line: _Line) -> tuple[str, ...]:
    return (line.answers,) if isinstance(line.answers, str) else tuple(line.answers)


def _example(number: int, line: _Line) -> Example:
    facts: dict[str, Fact] = dict(line.facts or {})
    return Example(
        name=line.name or str(number),
        context=line.context,
        question=line.question,
        answers=_answers(line),
        choices=tuple(line.choices or ()),
        answer_prefix=line.answer_prefix,
        facts=facts,
    )


FILE = Benchmark(
    name="file",
    summary="your own examples: contexts, questions and right answers, judged by any metric",
    source="Winnow",
    tasks={"file": "lines without a task; a line that names a task belongs to that task"},
    load=_load,
    data=DATA,
)
