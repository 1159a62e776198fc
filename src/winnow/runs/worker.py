"""The work of a run: a group under a method or several, and its rows. Recipes make workers in other processes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from winnow.composition.method import Method
from winnow.estimate.executors.base import Item, Worker
from winnow.evaluate.example_prompts import Fitted, PromptRules, fitted
from winnow.evaluate.slots import mean_slots
from winnow.models import ModelSpec, context_length
from winnow.runs.cells import CellSpace, content_hash, context_hash
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
        reader = _Reader(self, model, tokenizer)

        def evaluate(item: Item) -> list[Row]:
            return list(reader.rows(item))

        return evaluate


class _Part(NamedTuple):
    """Examples whose contexts are the same also after texts that are too long lost their middles."""

    places: list[int]
    """Places in the group."""
    reading: Reading


class _Reader:
    """Reads groups, and keeps the one that was read last."""

    def __init__(self, recipe: RunRecipe, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
        self._recipe = recipe
        self._model = model
        self._tokenizer = tokenizer
        self._at: int | None = None
        self._fitted: list[Fitted] = []
        self._cells: list[list[str]] = []
        self._parts: list[_Part] = []

    def rows(self, item: Item) -> Iterator[Row]:
        if item.example != self._at:
            self._read(item.example)
        group, chosen = self._recipe.groups[item.example], self._recipe.places(item)
        methods = [self._recipe.methods[place] for place in chosen]
        for part in self._parts:
            fits = [self._fitted[place].example for place in part.places]
            found = judged(self._tokenizer, part.reading, methods, fits, group.judging)
            for method, answers in zip(chosen, found, strict=True):
                for place, prompt, answer in zip(part.places, part.reading.prompts, answers, strict=True):
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
        )

    def _read(self, index: int) -> None:
        group, protocol = self._recipe.groups[index], self._recipe.space.protocol
        # What was read before goes first: two full caches would need twice the memory.
        self._at, self._parts = None, []
        self._cells = self._recipe.space.cells(group, self._recipe.methods)
        rules = prompt_rules(self._recipe, group, self._model)
        self._fitted = [fitted(self._tokenizer, example, rules) for example in group.examples]
        for places in _by_context([each.example for each in self._fitted]):
            examples = [self._fitted[place].example for place in places]
            reading = read_group(
                self._model,
                self._tokenizer,
                examples,
                self._recipe.methods,
                rules.chat_template,
                Terms(protocol.question_seen, self._recipe.space.fold_every, self._recipe.batch),
            )
            self._parts.append(_Part(places, reading))
        self._at = index


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
