"""Questions answered under many methods."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Annotated, Any, NamedTuple

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from journaled import DocumentJournal, Findings
from winnow import CacheStats, Method
from winnow.estimate.records import Record
from winnow.evaluate import evaluate
from winnow.evaluate.slots import mean_slots
from winnow.tasks import generate_document
from winnow.typed import Between, Sized, TypedError, shown

BATCH = 16
ANSWERS = "answers"
"""The task's name in a journal."""


class Asked(NamedTuple):
    """The questions of a study about every document, and the room for their answers."""

    tokens: int
    """Prompt and answer together, at most."""
    questions_per_kind: int
    """Questions of each of the four kinds about every document."""
    answer_tokens: int


def answer_findings(asked: Asked) -> Findings:
    """Found about a document: answers by the kind of question, mean slots, share of the bytes."""
    count = Annotated[int, Between(0, asked.questions_per_kind)]
    types: dict[str, Any] = {
        "answers": Annotated[dict[str, tuple[count, count]], Sized(1)],  # type: ignore[valid-type]
        "slots": Annotated[float, Between(0, 2 * asked.tokens)],
        "share": Annotated[float, Between(0, 8)],
    }
    return Findings(types, _check_answers)


def _check_answers(found: Record) -> None:
    """Raises TypedError for more right answers than questions."""
    for kind, (right, questions) in found["answers"].items():
        if right > questions:
            raise TypedError(f"answers[{shown(kind)}] has {right} right answers to {questions} questions")


@dataclass
class Tally:
    """All questions under one method and budget."""

    right: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    asked: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    slots: list[float] = field(default_factory=list)
    """Mean over the heads, of every document."""
    share: list[float] = field(default_factory=list)
    """Bytes of the compressed prompt over those of the full cache, of every document."""

    @property
    def questions(self) -> int:
        """Number of questions asked."""
        return sum(self.asked.values())

    @property
    def accuracy(self) -> float:
        """Share of all questions answered right."""
        return sum(self.right.values()) / self.questions

    def accuracy_in(self, kind: str) -> float:
        """Share of one task's questions answered right."""
        return self.right[kind] / self.asked[kind]

    def add(self, record: Record) -> None:
        """Counts of one document."""
        for kind, (right, asked) in record["answers"].items():
            self.right[kind] += right
            self.asked[kind] += asked
        self.slots.append(record["slots"])
        self.share.append(record["share"])


class Answering:
    """The model, and the journal of what it answered already."""

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, journal: DocumentJournal, asked: Asked
    ) -> None:
        self.model, self.tokenizer, self.journal, self.asked = model, tokenizer, journal, asked

    def tally(self, title: str, seeds: Sequence[int], methods: Iterable[Method]) -> dict[str, Tally]:
        """All questions of all documents under every method, by the method's text."""
        found = self.journal.over(ANSWERS, title, seeds, methods, self._document)
        tallies = {text: Tally() for text in found}
        for text, records in found.items():
            for record in records:
                tallies[text].add(record)
        return tallies

    def _document(self, seed: int, methods: Sequence[Method]) -> Iterator[Record]:
        """Right answers and questions of every kind."""
        document = generate_document(seed, self.asked.tokens, self.asked.questions_per_kind)
        counts: dict[Method, dict[str, list[int]]] = {method: defaultdict(lambda: [0, 0]) for method in methods}
        slots: dict[Method, list[float]] = defaultdict(list)
        shares: dict[Method, list[float]] = defaultdict(list)
        questions, limit = document.questions, self.asked.answer_tokens
        for trial in evaluate(self.model, self.tokenizer, document.text, questions, methods, limit, BATCH):
            count = counts[trial.method][trial.question.kind]
            count[0] += trial.right
            count[1] += 1
            slots[trial.method].append(mean_slots(trial.stats))
            shares[trial.method].append(prefix_share(trial.stats))
        for method in methods:
            facts = {"slots": fmean(slots[method]), "share": fmean(shares[method])}
            yield {"method": str(method), "answers": counts[method], **facts}


def prefix_share(stats: CacheStats) -> float:
    """Bytes of the compressed prompt over those of the full cache; the tail's room for the answer does not count."""
    room = stats.bytes.get("tail_keys", 0) + stats.bytes.get("tail_values", 0)
    return (stats.held_bytes - room) / stats.full_bytes
