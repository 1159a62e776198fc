"""Measures of kept tokens: kept anywhere, overlap of heads, and the share of the facts that an answer needs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from statistics import fmean
from typing import Annotated, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

import winnow
from journaled import DocumentJournal, Findings
from settings import QUESTIONS_PER_KIND, TOKENS
from winnow import Diagnosis, Method
from winnow.estimate.records import Record
from winnow.evaluate.facts import fact_tokens
from winnow.evaluate.prompts import encode_prompt
from winnow.tasks import QUESTION_KINDS, generate_document
from winnow.typed import Between, Sized

Spans = Sequence[tuple[int, int]]
"""[start, stop) of the tokens of facts."""


class Kept(NamedTuple):
    """Means over prompts, one question of every kind of every document."""

    coverage: float
    """Share of the prompt that any head of any layer keeps."""
    iou: float
    """Overlap of the kept sets of head pairs of a layer."""
    facts: float
    """Share of the tokens of the needed facts that a head keeps, mean over heads and layers."""
    found: float
    """The same for the heads of a layer together: share of these tokens that any of them keeps, mean over layers."""


_Share = Annotated[float, Between(0, 1)]
KEPT_FINDINGS = {
    "kept": Findings(dict.fromkeys(Kept._fields, _Share)),
    "layers": Findings({"facts": Annotated[list[_Share], Sized(1)]}),
}
"""By the task's name in a journal."""


class Keeping:
    """The model, and the journal of what was measured already."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, journal: DocumentJournal) -> None:
        self.model, self.tokenizer, self.journal = model, tokenizer, journal

    def measure(self, title: str, seeds: Sequence[int], methods: Iterable[Method]) -> dict[str, Kept]:
        """Values by the method's text."""
        found = self.journal.over("kept", title, seeds, methods, self._document)
        return {
            text: Kept(*(fmean(r[name] for r in records) for name in Kept._fields)) for text, records in found.items()
        }

    def facts_by_layer(self, title: str, seeds: Sequence[int], methods: Iterable[Method]) -> dict[str, list[float]]:
        """Values by the method's text: for every layer, the share of the needed facts' tokens that a head keeps."""
        found = self.journal.over("layers", title, seeds, methods, self._layers)
        return {
            text: [fmean(layer) for layer in zip(*(record["facts"] for record in records), strict=True)]
            for text, records in found.items()
        }

    def _layers(self, seed: int, methods: Sequence[Method]) -> Iterator[Record]:
        asked = self._prompts(seed)
        for method in methods:
            kept = [_keeps(winnow.diagnose(self.model, prompt, method, queries=1), span) for prompt, span in asked]
            layers = zip(*([float(each.double().mean()) for each in layers] for layers in kept), strict=True)
            yield {"method": str(method), "facts": [fmean(layer) for layer in layers]}

    def _document(self, seed: int, methods: Sequence[Method]) -> Iterator[Record]:
        asked = self._prompts(seed)
        for method in methods:
            found = [winnow.diagnose(self.model, prompt, method, queries=1) for prompt, _ in asked]
            shares = [_of_facts(each, span) for each, (_, span) in zip(found, asked, strict=True)]
            yield {
                "method": str(method),
                "coverage": fmean(each.coverage_share for each in found),
                "iou": fmean(each.iou or 0.0 for each in found),
                "facts": fmean(share[0] for share in shares),
                "found": fmean(share[1] for share in shares),
            }

    def _prompts(self, seed: int) -> list[tuple[Tensor, Spans]]:
        """One question of every kind, with where its facts are."""
        document = generate_document(seed, TOKENS, QUESTIONS_PER_KIND)
        questions = [next(q for q in document.questions if q.kind == kind) for kind in QUESTION_KINDS]
        return [
            (
                encode_prompt(self.tokenizer, document.text, question.text),
                fact_tokens(self.tokenizer, document.text, question),
            )
            for question in questions
        ]


def _of_facts(diagnosis: Diagnosis, spans: Spans) -> tuple[float, float]:
    """Share of the tokens in the spans that a head keeps, and that any head of a layer keeps."""
    layers = _keeps(diagnosis, spans)
    alone = fmean(float(keeps.double().mean()) for keeps in layers)
    return alone, fmean(float(keeps.any(dim=0).double().mean()) for keeps in layers)


def _keeps(diagnosis: Diagnosis, spans: Spans) -> list[Tensor]:
    """[H, tokens in the spans] bool of every layer: which of them a head keeps."""
    needed = torch.cat([torch.arange(start, stop) for start, stop in spans])
    return [torch.stack([torch.isin(needed, kept) for kept in layer.kept]) for layer in diagnosis.layers]
