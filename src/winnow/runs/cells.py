"""Cells: a hash of everything that a result depends on, so that no result is taken for another's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, is_dataclass
from typing import Any

from winnow.composition.method import Method
from winnow.estimate.journal import fingerprint
from winnow.heads.scores import HeadScores
from winnow.runs.groups import Group
from winnow.tasks.example import Example
from winnow.tasks.protocol import Protocol
from winnow.version import __version__

# What a protocol says for people decides nothing.
_TOLD = ("summary", "source", "benchmarks", "full_rows", "validation")


@dataclass(frozen=True)
class CellSpace:
    """Everything that all cells of a run have in common."""

    model: str
    """Fingerprint of weights and architecture, dtype included."""
    protocol: Protocol
    fold_every: int | None = None
    """Answer tokens after which methods compress again; None where they do not."""

    def config(self) -> dict[str, Any]:
        """The same as plain JSON values."""
        rules = {name: value for name, value in asdict(self.protocol).items() if name not in _TOLD}
        folds = {} if self.fold_every is None else {"fold_every": self.fold_every}
        return {"task": "eval", "winnow": __version__, "model": self.model, "protocol": rules, **folds}

    def cell(self, group: Group, example: Example, method: Method) -> str:
        """The hash of one example under one method."""
        place = [group.benchmark, group.task, list(group.judging), content_hash(example)]
        tables = [found for part in (method.scorer, method.allocator, method.store) for found in _tables(part)]
        return fingerprint([self.config(), place, str(method), tables])


def content_hash(example: Example) -> str:
    """A hash of an example's texts; its name is not one."""
    return fingerprint(
        [example.context, example.question, example.answers, example.choices, example.answer_prefix],
    )


def context_hash(example: Example) -> str:
    """A hash of an example's context, which others may share; of all its texts where it has none to share."""
    return fingerprint(example.context) if example.context.strip() else content_hash(example)


def _tables(part: object) -> Iterator[str]:
    """Hashes of the head scores in a part of a method, of which its text names a file only."""
    if not is_dataclass(part):
        return
    for field in fields(part):
        value = getattr(part, field.name)
        if isinstance(value, HeadScores):
            yield fingerprint([value.method, value.heads, value.values.tolist()])
        else:
            yield from _tables(value)
