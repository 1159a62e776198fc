"""Runs of a few short questions to the bundled model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from winnow.cache.fingerprint import ModelFingerprint
from winnow.composition.names import method
from winnow.estimate.journal import Journal, fingerprint
from winnow.models import ModelSpec
from winnow.runs.cells import CellSpace
from winnow.runs.evaluation import Evaluation
from winnow.runs.groups import grouped
from winnow.runs.worker import RunRecipe
from winnow.tasks import format_prompt, generate_document
from winnow.tasks.example import Example, Judging, Task
from winnow.tasks.protocols import protocol

METHODS = ("full", "snapkv @ 25%", "keydiff @ 50%", "full+bits(8)")


def small_task(documents: int = 2, questions: int = 1, judging: Judging | None = None) -> Task:
    """Questions about generated documents, in the bundled model's own form."""
    examples = []
    for seed in range(documents):
        document = generate_document(seed, tokens=256, questions_per_kind=questions)
        for number, asked in enumerate(document.questions):
            question = format_prompt("", asked.text)
            examples.append(Example(f"{seed}-{number}", document.text, question, (asked.answer,)))
    return Task("small", "small", judging or Judging("contains_any", 12), tuple(examples))


def recipe(model: Any, tasks: list[Task], seen: bool = True, methods: tuple[str, ...] = METHODS) -> RunRecipe:
    """The work of a run on the bundled model, which is at hand."""
    rules = protocol("plain" if seen else "plain-agnostic")
    space = CellSpace(fingerprint(ModelFingerprint.of(model).weights), rules)
    made = tuple(method(text) for text in methods)
    spec = ModelSpec(model.config.name_or_path, "cpu", "float32")
    return RunRecipe(spec, space, tuple(grouped(tasks, 8)), made)


def evaluation(made: RunRecipe, path: Path, together: int = 1, shard: tuple[int, int] = (0, 1)) -> Evaluation:
    """The cells of a run, in a journal."""
    return Evaluation(made, Journal.open(path, made.space.config()), together, shard=shard)
