"""The model of a study and the prompts that are looked into, with a journal of what was found."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Annotated

from torch import Tensor
from transformers import PreTrainedModel

from evaluated import REFERENCE, Study, reference, write_reference
from journaled import DocumentJournal, Findings, Work
from reporting import software
from winnow import Method
from winnow.estimate.journal import Journal, fingerprint
from winnow.estimate.records import Record
from winnow.models import load_model, open_model
from winnow.tasks.benchmark import Request
from winnow.tasks.registry import benchmark
from winnow.typed import Between, Sized

Share = Annotated[float, Between(0, 1)]
Shares = Annotated[list[Share], Sized(1)]
KINDS = {"question": "a question about generated prose at the end", "text": "Python's reference"}
"""Kinds of prompts, in words."""
MOST = 1000
"""Prompts of a kind that a journal may know from before."""
_QUESTIONS_OF_A_DOCUMENT = 6


class Examined:
    """Prompts of both kinds, of at most `tokens` tokens, and the findings on them."""

    def __init__(self, study: Study, name: str, types: Mapping[str, object], tokens: int, count: int) -> None:
        """name: of the journal. types: of what is found on a prompt under a method, as `winnow.typed` reads them."""
        self.study, self.tokens, self.count = study, tokens, count
        self.source = open_model(study.model)
        journal = Journal.open(study.folder / f"{name}.jsonl", self._depends_on())
        tasks = {kind: Findings(types) for kind in KINDS}
        self._journal = DocumentJournal(journal, tasks, range(max(count, MOST)))

    def _depends_on(self) -> dict[str, object]:
        """All that the findings depend on: how many prompts there are decides which, and Python its reference."""
        sizes = {"tokens": self.tokens, "prompts": self.count}
        return {"model": self.study.identity, "reference": fingerprint(reference()), **sizes, **software()}

    @cached_property
    def model(self) -> PreTrainedModel:
        """The model, read when something is missing."""
        return load_model(self.source, "cpu")

    def over(self, kind: str, title: str, methods: Iterable[Method], work: Work) -> dict[str, list[Record]]:
        """Findings on every prompt of a kind, by the method's text."""
        return self._journal.over(kind, title, range(self.count), methods, work)

    def prompt(self, kind: str, number: int) -> Tensor:
        """[1, N]"""
        encoded: Tensor = self.source.tokenizer(self._texts[kind][number], return_tensors="pt").input_ids
        return encoded

    @cached_property
    def _texts(self) -> dict[str, Sequence[str]]:
        write_reference(self.study)
        data, lengths = self.study.folder / REFERENCE, (self.tokens,)
        asked = Request(self.source.count_tokens, examples=self.count * _QUESTIONS_OF_A_DOCUMENT, lengths=lengths)
        (facts,) = benchmark("facts").load(asked)
        (text,) = benchmark("text").load(
            Request(self.source.count_tokens, examples=self.count, lengths=lengths, data=data)
        )
        of_each = facts.examples[::_QUESTIONS_OF_A_DOCUMENT]
        return {
            "question": [example.context + example.question for example in of_each],
            "text": [example.context for example in text.examples],
        }
