"""The work of a run: a group under a method or several, and its rows. Recipes make workers in other processes."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from winnow.composition.method import Method
from winnow.estimate.executors.base import Item, Worker
from winnow.evaluate.example_prompts import Fitted, PromptRules, fitted
from winnow.evaluate.slots import mean_slots
from winnow.models import ModelSpec, context_length
from winnow.runs.cells import CellSpace, content_hash, context_hash
from winnow.runs.environment import environment
from winnow.runs.groups import Group
from winnow.runs.judging import Judged, judged
from winnow.runs.reading import Costs, Reading, Terms, read_group
from winnow.runs.rows import Row
from winnow.tasks.example import Example

LONGEST_QUESTION = 1000
"""Characters of a question that rows keep; the last ones ask, behind worked examples if there are any."""


@dataclass(frozen=True)
class RunRecipe:
    """Everything that rows depend on, small enough to be sent. Item.example is a group, Item.batch methods."""

    model: ModelSpec
    space: CellSpace
    groups: tuple[Group, ...]
    methods: tuple[Method, ...]
    batch: int = 8
    """Questions about one context that are answered side by side, at most."""
    batches: tuple[tuple[int, ...], ...] = ()
    """Places of methods whose answers are decoded side by side, for every Item.batch; none: each method is a batch."""

    def places(self, item: Item) -> tuple[int, ...]:
        """Places of the methods that an item is about."""
        return self.batches[item.batch] if self.batches else (item.batch,)

    def prepare(self) -> Worker[list[Row]]:
        """Loads the model. Raises ModelError where that fails."""
        return self.worker(*self.model.load())

    def worker(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Worker[list[Row]]:
        """The same with a model that is loaded already."""
        return _Reader(self, model, tokenizer).rows


class _Reader:
    """Reads groups, and keeps the one that was read last; with fewer questions side by side where memory is short."""

    def __init__(self, recipe: RunRecipe, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
        self._recipe = recipe
        self._model = model
        self._tokenizer = tokenizer
        self._batch = recipe.batch
        self._environment = environment(model.device)
        self._at: int | None = None
        self._fitted: list[Fitted] = []
        self._cells: list[list[str]] = []
        self._parts: list[list[int]] = []
        """Places in the group of examples that are read together: their contexts are the same also after texts that are
        too long lost their middles."""
        self._readings: dict[int, Reading] = {}
        """Those of parts."""

    def rows(self, item: Item) -> list[Row]:
        """Rows of an item. Raises torch.OutOfMemoryError where a GPU has no memory for one question."""
        found = self._rows_that_fit(item)
        while found is None:
            self._halve()
            found = self._rows_that_fit(item)
        return found

    def _rows_that_fit(self, item: Item) -> list[Row] | None:
        """None where the device ran out of memory with several questions side by side."""
        try:
            if item.example != self._at:
                self._begin(item.example)
            return [row for part in range(len(self._parts)) for row in self._rows(item, part)]
        except torch.OutOfMemoryError:
            if self._side_by_side == 1:
                raise
            return None

    @property
    def _side_by_side(self) -> int:
        """Questions of the group at hand that go side by side, at most."""
        return min(self._batch, max(map(len, self._parts)))

    def _halve(self) -> None:
        """Lets go of what was read; from here on half as many questions go side by side."""
        before, self._batch = self._side_by_side, self._side_by_side // 2
        self._at = None
        self._readings.clear()
        gc.collect()
        torch.cuda.empty_cache()
        warnings.warn(
            f"The GPU has too little memory for {before} questions side by side; continuing with {self._batch}.",
            RuntimeWarning,
            stacklevel=2,
        )

    def _rows(self, item: Item, part: int) -> Iterator[Row]:
        group, chosen, places = self._recipe.groups[item.example], self._recipe.places(item), self._parts[part]
        methods = [self._recipe.methods[place] for place in chosen]
        fits = [self._fitted[place].example for place in places]
        reading = self._reading(group, part)
        found = judged(self._tokenizer, reading, methods, fits, group.judging)
        for method, answers in zip(chosen, found, strict=True):
            for place, prompt, answer in zip(places, reading.prompts, answers, strict=True):
                yield self._row(group, method, place, prompt.shape[1], answer)

    def _row(self, group: Group, method: int, place: int, prompt_tokens: int, answer: Judged) -> Row:
        example = group.examples[place]
        return Row(
            cell=self._cells[method][place],
            benchmark=group.benchmark,
            task=group.task,
            example=example.name,
            content=content_hash(example),
            context=context_hash(example),
            method=str(self._recipe.methods[method]),
            scores=answer.scores,
            prediction=answer.text,
            answers=list(example.answers),
            facts=dict(example.facts),
            truncated=self._fitted[place].truncated,
            prompt_tokens=prompt_tokens,
            **_costs(answer.costs),
            new_tokens=answer.new_tokens,
            decode_steps=answer.steps,
            decode_seconds=answer.seconds,
            together=answer.together,
            question=example.question.strip()[-LONGEST_QUESTION:],
            environment=self._environment,
        )

    def _begin(self, index: int) -> None:
        group = self._recipe.groups[index]
        # What was read before goes first: two full caches would need twice the memory.
        self._at = None
        self._readings.clear()
        self._cells = self._recipe.space.cells(group, self._recipe.methods)
        rules = prompt_rules(self._recipe, group, self._model)
        self._fitted = [fitted(self._tokenizer, example, rules) for example in group.examples]
        most = self._batch if self._recipe.space.protocol.question_seen else len(group.examples)
        self._parts = [
            places[first : first + most]
            for places in _by_context([each.example for each in self._fitted])
            for first in range(0, len(places), most)
        ]
        self._at = index

    def _reading(self, group: Group, part: int) -> Reading:
        """A part, read; those of a group are all kept for its other methods, unless memory is short."""
        if part not in self._readings:
            if self._batch < self._recipe.batch:
                self._readings.clear()
            space = self._recipe.space
            self._readings[part] = read_group(
                self._model,
                self._tokenizer,
                [self._fitted[place].example for place in self._parts[part]],
                self._recipe.methods,
                prompt_rules(self._recipe, group, self._model).chat_template,
                Terms(space.protocol.question_seen, space.fold_every, self._batch),
            )
        return self._readings[part]


def prompt_rules(recipe: RunRecipe, group: Group, model: PreTrainedModel) -> PromptRules:
    """Rules of a protocol for the examples of a group, within what the model reads."""
    protocol = recipe.space.protocol
    context = context_length(model.config)
    return PromptRules(
        protocol.chat_template and group.judging.chat_template,
        recipe.space.limit,
        None if context is None else context - group.judging.max_new_tokens,
    )


def _by_context(examples: Sequence[Example]) -> list[list[int]]:
    places: dict[str, list[int]] = {}
    for place, example in enumerate(examples):
        places.setdefault(example.context, []).append(place)
    return list(places.values())


def _costs(costs: Costs) -> dict[str, Any]:
    return {
        "held_bytes": costs.stats.held_bytes,
        "full_bytes": costs.stats.full_bytes,
        "slots": mean_slots(costs.stats),
        "prefill_seconds": costs.prefill_seconds,
        "compress_seconds": costs.compress_seconds,
        "kept": costs.stats.slots,
    }
