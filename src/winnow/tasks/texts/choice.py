"""Multiple choice: the likeliest of several answers to a question, or of several ends of a text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import PurePosixPath

from winnow.tasks.benchmark import Benchmark, BenchmarkError, Request, asked_tasks
from winnow.tasks.example import Example, Judging, Task
from winnow.tasks.records import Record, open_folder, records
from winnow.tasks.sampling import sampled
from winnow.tasks.texts.choice_forms import Question, question

DATA = (
    "a JSONL or Parquet file with questions, choices and answers, or with the fields of LongBench v2, HellaSwag, ARC, "
    "MMLU or TruthfulQA; or a folder of such files"
)
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def _load(request: Request) -> list[Task]:
    """A task for every file, with the file's name."""
    folder = open_folder(request, "choice", DATA)
    files = {PurePosixPath(file).with_suffix("").as_posix(): file for file in folder.files}
    tasks = []
    for name in asked_tasks(request, "choice", files):
        asked = [(record, _checked(record)) for record in records(folder, files[name])]
        continued = asked[0][1].continued
        if other := next((record for record, each in asked if each.continued != continued), None):
            raise BenchmarkError(f"{other.place}: questions and texts to continue must be in separate files.")
        examples = [_example(str(number), each) for number, (_, each) in enumerate(asked, start=1)]
        # Who is asked to go on with a text gets no other words than the text.
        judging = Judging("choice", _longest(examples, request.count_tokens), chat_template=not continued)
        tasks.append(Task("choice", name, judging, sampled(examples, request.examples, request.seed)))
    return tasks


def _checked(record: Record) -> Question:
    found = question(record)
    # Of listed ones the model says the letter; MMLU has some that are there twice.
    told_apart = found.listed or len(set(found.choices)) == len(found.choices)
    if len(found.choices) < 2 or not told_apart:
        raise BenchmarkError(f"{record.place}: there must be at least two choices, all different.")
    if not all(choice.strip() for choice in found.choices):
        raise BenchmarkError(f"{record.place}: a choice is empty.")
    if found.listed and len(found.choices) > len(_LETTERS):
        raise BenchmarkError(f"{record.place}: {len(found.choices)} choices are more than there are letters.")
    return found


def _example(name: str, each: Question) -> Example:
    """The question as lm-evaluation-harness spaces it: a blank is before what is chosen.

    A question without a context is the context: methods that do not see questions would have nothing to compress.
    """
    if each.continued:
        return _with_choices(name, each.context, "", "", each.choices, each.right)
    context, asked = (f"{each.context}\n\n", each.question) if each.context else (each.question, "")
    if each.listed:
        lines = (f"{letter}. {choice}" for letter, choice in zip(_LETTERS, each.choices, strict=False))
        listed = each.listing or "\n".join(lines)
        letters = tuple(_LETTERS[: len(each.choices)])
        before, after = (context, f"{asked}\n{listed}\n") if asked else (f"{context}\n{listed}\n", "")
        return _with_choices(name, before, after, each.cue, letters, each.right)
    before, after = (context, f"{each.label}{asked}\n") if asked else (f"{each.label}{context}\n", "")
    return _with_choices(name, before, after, each.cue, each.choices, each.right)


def _with_choices(name: str, context: str, asked: str, cue: str, choices: tuple[str, ...], right: int) -> Example:
    spaced = tuple(f" {choice}" for choice in choices)
    return Example(name, context, asked, (spaced[right],), choices=spaced, answer_prefix=cue)


def _longest(examples: Sequence[Example], count_tokens: Callable[[str], int]) -> int:
    """Tokens that the longest of all choices needs behind its prompt."""
    return max(count_tokens(choice) for choice in {choice for each in examples for choice in each.choices})


CHOICE = Benchmark(
    name="choice",
    summary="multiple choice by log-likelihood, from your own files or known data sets",
    source="prompts spaced as in lm-evaluation-harness",
    tasks={"NAME": "a file NAME.jsonl or NAME.parquet; every file of a folder is a task"},
    load=_load,
    data=DATA,
)
