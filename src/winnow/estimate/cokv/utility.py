"""The worth of a coalition of heads: what the answers that a model gives with it are worth, by a metric."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from winnow.cache.compressed import CompressedCache
from winnow.composition.names import method
from winnow.estimate.asking import asked_tokens
from winnow.estimate.cokv.examples import ValidationExample, check_examples
from winnow.estimate.cokv.prefilled import PrefilledExample, PrefilledExamples, PromptMemory
from winnow.estimate.cokv.settings import Terms
from winnow.evaluate.batch import next_tokens
from winnow.evaluate.decoding import prefill, stop_tokens
from winnow.evaluate.open_rows import OpenRows
from winnow.metrics import Judge, metric

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


class Answers:
    """The answers of the rows of a batch, each up to a stop token or to where it is known what it is worth."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, stops: frozenset[int], judge: Judge, count: int) -> None:
        self._tokenizer = tokenizer
        self._stops = stops
        self._judge = judge
        self._tokens: list[list[int]] = [[] for _ in range(count)]
        self._texts = [""] * count
        self.rows = OpenRows(count)

    def add(self, tokens: Tensor) -> None:
        """The next token of every row that was not left out [rows]."""
        rows, heard = self.rows, dict(zip(self.rows.there, tokens.tolist(), strict=True))
        rows.open -= {row for row, token in heard.items() if token in self._stops}
        for row in sorted(rows.open):
            self._tokens[row].append(heard[row])
            self._texts[row] = str(self._tokenizer.decode(self._tokens[row], skip_special_tokens=True))
        rows.open -= {row for row in rows.open if self._judge.settled(self._texts[row])}

    def worth(self, row: int) -> float:
        """The worth of what this row of the whole batch said."""
        return self._judge.score(self._texts[row])


class CoalitionUtility:
    """U(S) of the CoKV paper for one example at a time: the worth of the greedy answer, by the metric of the terms, or
    as a benchmark's protocol judges it.

    Heads in S read the whole prompt, all others its last tokens; the prompt itself is always read with full attention
    (Section 2.2), so every coalition decodes over the same keys and values. Prompts stay prefilled as far as there is
    memory for them.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        examples: Sequence[ValidationExample],
        terms: Terms,
        memory: PromptMemory | None = None,
    ) -> None:
        """Raises ShapleyError as `check_examples`, and MetricError for a metric that cannot be had."""
        usual = metric(terms.metric)
        check_examples(examples, usual)
        self._judges = [Judge(example.metric(usual), example.expected) for example in examples]
        self._model = model
        self._tokenizer = tokenizer
        self._examples = examples
        self._terms = terms
        self._stops = stop_tokens(model)
        self._prefilled = PrefilledExamples(model, self._prefill, memory or PromptMemory())

    def __call__(self, example: int, masks: Tensor) -> list[float]:
        """The utilities of coalitions [C, L, H] bool for one example, decoded side by side."""
        put = self._examples[example].put
        most = self._terms.max_new_tokens if put is None else put.judging.max_new_tokens
        said = Answers(self._tokenizer, self._stops, self._judges[example], len(masks))
        self._decode(self._prefilled[example], masks, said, most)
        return [said.worth(row) for row in range(len(masks))]

    def _decode(self, asked: PrefilledExample, masks: Tensor, said: Answers, most: int) -> None:
        cache = asked.cache.coalitions(masks, self._terms.window)
        tokens = asked.first.expand(len(masks))
        said.add(tokens)
        for _ in range(most - 1):
            if not said.rows.open:
                return
            (tokens,) = said.rows.without_ended(cache, tokens)
            positions = torch.full((len(tokens), 1), cache.get_seq_length(), device=tokens.device)
            tokens = next_tokens(self._model, cache, tokens, positions)
            said.add(tokens)

    def _prefill(self, example: int) -> PrefilledExample:
        document, question, _, put = self._examples[example]
        prompt = asked_tokens(self._tokenizer, document, question, self._terms.style, put)
        chunk_size = self._terms.chunk_size
        cache = CompressedCache(self._model, method("full"), prompt_length=prompt.shape[1] if chunk_size else None)
        first = prefill(self._model, prompt, cache, chunk_size).argmax(-1, keepdim=True)
        return PrefilledExample(cache, prompt, first)
