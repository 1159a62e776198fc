"""Questions answered under many methods."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import NamedTuple

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from journaled import DocumentJournal
from winnow import CacheStats, Method
from winnow.estimate.forms import Form, Listed, Misfit, Named, Real, Whole
from winnow.estimate.records import Record
from winnow.evaluate import evaluate
from winnow.evaluate.slots import mean_slots
from winnow.tasks import generate_document

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


class RightOfAsked:
    """The form of two numbers: right answers, and questions of one kind about a document."""

    def __init__(self, most: int) -> None:
        self._numbers = Listed(Whole(0, most), 2)

    def check(self, name: str, value: object) -> None:
        """Raises Misfit for more right answers than questions, too."""
        self._numbers.check(name, value)
        if isinstance(value, list) and value[0] > value[1]:
            raise Misfit(f"{name} has {value[0]} right answers to {value[1]} questions")


def answer_forms(asked: Asked) -> dict[str, Form]:
    """The forms of what is found about a document: answers by the kind of question, mean slots, share of the bytes."""
    answers = Named(RightOfAsked(asked.questions_per_kind))
    return {"answers": answers, "slots": Real(0, 2 * asked.tokens), "share": Real(0, 8)}


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
