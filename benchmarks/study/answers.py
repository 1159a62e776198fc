"""Questions answered under many methods."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from journaled import over_documents
from settings import ANSWER_TOKENS, QUESTIONS_PER_KIND, TOKENS
from winnow import Method
from winnow.evaluate import evaluate
from winnow.evaluate.slots import mean_slots
from winnow.heads.journal import Journal, Record
from winnow.tasks import generate_document

BATCH = 16


@dataclass
class Tally:
    """All questions under one method and budget."""

    right: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    asked: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    slots: list[float] = field(default_factory=list)
    """Mean over the heads, of every document."""

    @property
    def questions(self) -> int:
        """How many."""
        return sum(self.asked.values())

    @property
    def accuracy(self) -> float:
        """Of all questions."""
        return sum(self.right.values()) / self.questions

    def accuracy_in(self, kind: str) -> float:
        """Of one task's questions."""
        return self.right[kind] / self.asked[kind]

    def add(self, record: Record) -> None:
        """Counts of one document."""
        for kind, (right, asked) in record["answers"].items():
            self.right[kind] += right
            self.asked[kind] += asked
        self.slots.append(record["slots"])


class Answering:
    """The model, and the journal of what it answered already."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, journal: Journal) -> None:
        self.model, self.tokenizer, self.journal = model, tokenizer, journal

    def tally(self, title: str, seeds: Sequence[int], methods: Iterable[Method]) -> dict[str, Tally]:
        """All questions of all documents under every method, by the method's text."""
        found = over_documents(self.journal, "answers", title, seeds, methods, self._document)
        tallies = {text: Tally() for text in found}
        for text, records in found.items():
            for record in records:
                tallies[text].add(record)
        return tallies

    def _document(self, seed: int, methods: Sequence[Method]) -> Iterator[Record]:
        """Right answers and questions of every kind."""
        document = generate_document(seed, TOKENS, QUESTIONS_PER_KIND)
        counts: dict[Method, dict[str, list[int]]] = {method: defaultdict(lambda: [0, 0]) for method in methods}
        slots: dict[Method, list[float]] = defaultdict(list)
        questions = document.questions
        for trial in evaluate(self.model, self.tokenizer, document.text, questions, methods, ANSWER_TOKENS, BATCH):
            count = counts[trial.method][trial.question.kind]
            count[0] += trial.right
            count[1] += 1
            slots[trial.method].append(mean_slots(trial.stats))
        for method in methods:
            yield {"method": str(method), "answers": counts[method], "slots": fmean(slots[method])}
