"""Questions answered at every value and budget, journaled document by document."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from winnow.composition.method import Method
from winnow.estimate.journal import Journal
from winnow.estimate.records import answer_records
from winnow.estimate.tune.intervals import Interval, wilson
from winnow.estimate.tune.knobs import Number
from winnow.estimate.tune.put import put_answers
from winnow.estimate.tune.questions import Pages, PutDocument, QuestionSplit
from winnow.estimate.tune.settings import BATCH_SIZE, MAX_NEW_TOKENS
from winnow.evaluate import evaluate
from winnow.metrics import EXACT_MATCH, Metric
from winnow.tasks import Document
from winnow.tasks.prompt_style import USUAL, PromptStyle

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

AnswerProgress = Callable[[int, bool], None]
"""Called with the number of further answers, and True for those that the journal had."""


class Setting(NamedTuple):
    """A value of the knob at a budget."""

    value: Number
    budget: str

    def __str__(self) -> str:
        return f"{self.value} @ {self.budget}"


class AnswerCount(NamedTuple):
    """Right answers, of so many; by other metrics than exact match the sum of what they are worth."""

    right: float
    questions: int

    @property
    def accuracy(self) -> float:
        """Between 0 and 1."""
        return self.right / self.questions

    @property
    def interval(self) -> Interval:
        """The 95 % interval of the accuracy."""
        return wilson(self.accuracy, self.questions)


class Answering:
    """A model, questions, and the journal of those that it answered already."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        questions: QuestionSplit,
        journal: Journal,
        max_new_tokens: int = MAX_NEW_TOKENS,
        style: PromptStyle = USUAL,
        judged: Metric = EXACT_MATCH,
    ) -> None:
        """Raises JournalError, naming the line, for a record that is of no document here, or contradicts another."""
        self._model = model
        self._tokenizer = tokenizer
        self._pages: dict[str, Pages] = questions._asdict()
        self._journal = journal
        self._max_new_tokens = max_new_tokens
        self._style = style
        self._metric = judged
        self._right: dict[tuple[str, int, str], Sequence[float]] = {}
        asked = {split: [len(page.questions) for page in pages] for split, pages in self._pages.items()}
        put = any(isinstance(page, PutDocument) for pages in self._pages.values() for page in pages)
        for record in journal.read(answer_records(asked, shares=put or judged != EXACT_MATCH)):
            self._keep(record.split, record.document, record.right)

    def tally(
        self,
        split: Literal["validation", "test"],
        methods: Mapping[Setting, Method],
        watch: AnswerProgress | None = None,
    ) -> dict[Setting, AnswerCount]:
        """All questions of a split's documents under every method."""
        for index, page in enumerate(self._pages[split]):
            missing = {at: method for at, method in methods.items() if (split, index, str(at)) not in self._right}
            if watch is not None:
                watch((len(methods) - len(missing)) * len(page.questions), True)
            if missing:
                self._answer(split, index, page, missing, watch)
        return {at: self._counted(split, at) for at in methods}

    def _answer(
        self, split: str, index: int, page: Document, methods: Mapping[Setting, Method], watch: AnswerProgress | None
    ) -> None:
        right: dict[Method, list[float]] = {method: [] for method in methods.values()}
        for method, worth in self._worths(page, list(right)):
            right[method].append(worth)
            if watch is not None:
                watch(1, False)
        found = {str(at): right[method] for at, method in methods.items()}
        # One record for all: a document is either done or not begun.
        self._journal.append({"split": split, "document": index, "right": found})
        self._keep(split, index, found)

    def _worths(self, page: Document, methods: Sequence[Method]) -> Iterator[tuple[Method, float]]:
        """The worth of every question's answer under every method, of a method in the questions' order."""
        if isinstance(page, PutDocument):
            yield from put_answers(self._model, self._tokenizer, page, methods)
            return
        asked = evaluate(
            self._model,
            self._tokenizer,
            page.text,
            page.questions,
            methods,
            self._max_new_tokens,
            BATCH_SIZE,
            self._style,
            self._metric,
        )
        for trial in asked:
            yield trial.method, trial.right if self._metric == EXACT_MATCH else trial.score

    def _keep(self, split: str, index: int, right: Mapping[str, Sequence[float]]) -> None:
        self._right |= {(split, index, at): answers for at, answers in right.items()}

    def _counted(self, split: str, at: Setting) -> AnswerCount:
        documents = range(len(self._pages[split]))
        answers = [answer for index in documents for answer in self._right[split, index, str(at)]]
        # Sums that differ by rounding only are the same.
        return AnswerCount(round(sum(answers), 9), len(answers))
