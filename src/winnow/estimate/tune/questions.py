"""Questions to choose by, and others to confirm the choice: no document is in both."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from winnow.estimate.errors import TuneError
from winnow.estimate.journal import fingerprint
from winnow.estimate.tune.settings import DOCUMENT_TOKENS, DOCUMENTS, QUESTIONS_PER_KIND
from winnow.metrics import Expected
from winnow.tasks import Document, Question, generate_document
from winnow.tasks.example import Judging
from winnow.tasks.put import Put

VALIDATION_SEED = 3_500_000
TEST_SEED = 3_600_000
"""Training, shipped scores and the study draw their documents from other seeds."""
_SEEDS_APART = 1_000

Pages = tuple[Document, ...]


@dataclass(frozen=True)
class PutDocument(Document):
    """A context of a benchmark's task, with questions that the benchmark's protocol puts and judges."""

    puts: tuple[Put, ...]
    """One for every question, of one task; they differ in their answer prefixes at most."""
    document: str = ""
    """A name of the document that the context was cut from; empty where the context itself tells it."""

    @property
    def judging(self) -> Judging:
        """The task's."""
        return self.puts[0].judging


class QuestionSplit(NamedTuple):
    """Documents with their questions."""

    validation: Pages
    """A value is chosen by these."""
    test: Pages
    """These are asked about once, when it is chosen."""

    def config(self) -> dict[str, str]:
        """Hashes for a journal."""
        return {name: fingerprint(_plain(pages)) for name, pages in self._asdict().items()}


def count_documents(pages: Pages) -> int:
    """The documents that pages are of, which may be cut in several ways."""
    return len({_document_of(page) for page in pages})


def count_questions(pages: Pages) -> int:
    """The questions of all documents together."""
    return sum(len(page.questions) for page in pages)


def generated(documents: int = DOCUMENTS, seed: int = 0, tokens: int = DOCUMENT_TOKENS) -> QuestionSplit:
    """So many generated documents for each of the two, of `tokens` tokens, four questions of every kind to each.

    Raises TuneError for a number of documents or a seed whose documents would meet those of another.
    """
    if not 1 <= documents <= _SEEDS_APART:
        raise TuneError(f"{documents} documents cannot be generated: give 1 to {_SEEDS_APART:,}.")
    most = (TEST_SEED - VALIDATION_SEED) // _SEEDS_APART - 1
    if not 0 <= seed <= most:
        raise TuneError(f"The seed of generated questions must be from 0 to {most}, not {seed}.")
    validation, test = (
        tuple(
            generate_document(first + _SEEDS_APART * seed + index, tokens, QUESTIONS_PER_KIND)
            for index in range(documents)
        )
        for first in (VALIDATION_SEED, TEST_SEED)
    )
    return QuestionSplit(validation, test)


def pages_of(asked: Iterable[tuple[str, str, Expected]]) -> Pages:
    """(document, question, right answers) in any order, put together by document."""
    found: dict[str, list[Question]] = {}
    for document, question, expected in asked:
        answer, *others = expected.answers
        found.setdefault(document, []).append(Question("", question, answer, tuple(others), expected.choices))
    return tuple(Document(text, tuple(questions)) for text, questions in found.items())


def put_pages_of(asked: Iterable[tuple[str, str, Expected, Put, str]]) -> Pages:
    """(context, question, right answers, put, document), put together by context, task and judging.

    document: as of `PutDocument`.
    """
    found: dict[tuple[str, str, Judging], list[tuple[str, str, Expected, Put, str]]] = {}
    for each in asked:
        found.setdefault((each[0], each[3].task, each[3].judging), []).append(each)
    pages = []
    for group in found.values():
        (plain,) = pages_of(each[:3] for each in group)
        pages.append(PutDocument(plain.text, plain.questions, tuple(put for *_, put, _ in group), group[0][4]))
    return tuple(pages)


def divided(pages: Sequence[Document], share: float, seed: int, documents: int | None = None) -> QuestionSplit:
    """A share of every task's documents for validation, the others for the test, after a shuffle that the seed decides.

    A document of several tasks is in one part for all of them. So tasks of few documents are divided first, and of each
    that follows, documents that have no part yet make up for those that have one, as far as there are enough.

    documents: take no more than so many of a task. Raises TuneError where the share of a task leaves a part empty.
    """
    if not pages:
        raise TuneError("There are no questions to choose a value by: give at least two documents.")
    tasks = [_taken(found, seed, documents) for found in _grouped(pages, _task_of).values()]
    validated: dict[str, bool] = {}
    for task in sorted(tasks, key=len):
        wanted = _validation_documents(share, len(task)) - sum(validated.get(document, False) for document in task)
        unplaced = [document for document in task if document not in validated]
        validated |= {document: index < wanted for index, document in enumerate(unplaced)}
    parts: dict[bool, list[Document]] = {True: [], False: []}
    for task in tasks:
        for document, found in task.items():
            parts[validated[document]] += found
    return QuestionSplit(tuple(parts[True]), tuple(parts[False]))


def _task_of(page: Document) -> str:
    return page.puts[0].task if isinstance(page, PutDocument) else ""


def _document_of(page: Document) -> str:
    return page.document or page.text if isinstance(page, PutDocument) else page.text


def _grouped(pages: Iterable[Document], name: Callable[[Document], str]) -> dict[str, list[Document]]:
    """Pages by what each is named, in order of appearance."""
    found: dict[str, list[Document]] = {}
    for page in pages:
        found.setdefault(name(page), []).append(page)
    return found


def _taken(pages: Iterable[Document], seed: int, documents: int | None) -> dict[str, list[Document]]:
    """The pages of a task's documents in the order of the shuffle, of so many at most."""
    shuffled = list(_grouped(pages, _document_of).items())
    random.Random(f"tune-{seed}").shuffle(shuffled)
    return dict(shuffled[:documents])


def _validation_documents(share: float, documents: int) -> int:
    """The number of a task's documents that are for validation. Raises TuneError where that leaves a part empty."""
    validation = round(share * documents)
    if not 0 < validation < documents:
        lacking = "validation" if validation == 0 else "test"
        raise TuneError(
            f"A share of {share:g} of {documents} document{'s' if documents > 1 else ''} leaves none for the "
            f"{lacking} (questions about one document stay together): give more documents, or another --split."
        )
    return validation


def _plain(pages: Pages) -> list[list[object]]:
    return [
        [
            page.text,
            [_plain_question(question) for question in page.questions],
            *([page.puts] if isinstance(page, PutDocument) else []),
        ]
        for page in pages
    ]


def _plain_question(question: Question) -> list[object]:
    """As earlier versions hashed it, where there is one right answer."""
    choices = [list(question.choices)] if question.choices else []
    return [question.text, question.expected.plain(), *choices]
