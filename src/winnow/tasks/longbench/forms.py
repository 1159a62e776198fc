"""Forms in which rows of LongBench are put to a model."""

from __future__ import annotations

from dataclasses import dataclass

from winnow.tasks.example import Example, Judging
from winnow.tasks.longbench.definition import FIRST_LINE, PLAIN_TEXT, TASKS, TEMPLATES

_CONTEXT = "{context}"


@dataclass(frozen=True)
class Row:
    """A row of LongBench's files, with the names that it has there."""

    input: str
    context: str
    answers: list[str]
    length: int
    dataset: str
    language: str
    all_classes: list[str] | None
    _id: str


def official(task: str, row: Row) -> Example:
    """The official prompt, divided behind the context."""
    before, after = TEMPLATES[task].split(_CONTEXT)
    return _example(row, before + row.context, _filled(after, row.input))


def kvpress(task: str, row: Row) -> Example:
    """The official prompt as kvpress' form of the data divides it: instructions belong to the context.

    The last words are the beginning of the answer, behind the chat template. Tasks without one have a line break before
    them, which kvpress puts between question and answer.
    """
    template, cue = TEMPLATES[task], TASKS[task].cue
    asked = row.input
    if template.endswith("{input}"):
        asked = asked.removesuffix(cue)
    else:
        template = template.removesuffix(cue)
    begin = template.index(TASKS[task].question) if TASKS[task].question in template else len(template)
    before, after = template[:begin].split(_CONTEXT)
    end = "\n" if task in PLAIN_TEXT else ""
    return _example(row, before + row.context + after, _filled(template[begin:], asked) + end, cue)


def judging(task: str, more_tokens: int = 0) -> Judging:
    """Rules of a task. more_tokens: added to the longest answer."""
    return Judging(
        metric=TASKS[task].metric,
        max_new_tokens=TASKS[task].max_new_tokens + more_tokens,
        chat_template=task not in PLAIN_TEXT,
        first_line=task in FIRST_LINE,
    )


def _filled(template: str, asked: str) -> str:
    return template.replace("{input}", asked)


def _example(row: Row, context: str, question: str, answer_prefix: str = "") -> Example:
    return Example(
        name=row._id,
        context=context,
        question=question,
        answers=tuple(row.answers),
        choices=tuple(row.all_classes or ()),
        answer_prefix=answer_prefix,
        facts={"words": row.length, "words_range": _range(row.length), "language": row.language},
    )


def _range(words: int) -> str:
    """The range of LongBench-E's tables."""
    if words < 4000:
        return "0-4k"
    return "4-8k" if words < 8000 else "8k+"
