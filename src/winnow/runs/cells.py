"""Cells: a hash of everything that a result depends on, so that no result is taken for another's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from winnow.composition.method import Method
from winnow.estimate.journal import fingerprint
from winnow.runs.groups import Group, texts_of
from winnow.runs.parts import unsaid
from winnow.tasks.example import Example
from winnow.tasks.protocol import FOR_PEOPLE, Protocol
from winnow.version import __version__

_TOLD = (*FOR_PEOPLE, "lengths")  # of lengths, the texts tell


@dataclass(frozen=True)
class CellSpace:
    """Everything that all cells of a run have in common."""

    model: str
    """Fingerprint of weights and architecture, dtype included."""
    protocol: Protocol
    fold_every: int | None = None
    """Answer tokens after which methods compress again; None where they do not."""
    limit: int | None = None
    """Tokens of a prompt at most, as the protocol has it for this model; None: as much as the model reads."""

    def config(self) -> dict[str, Any]:
        """The same as plain JSON values."""
        rules = {name: value for name, value in asdict(self.protocol).items() if name not in _TOLD}
        folds = {} if self.fold_every is None else {"fold_every": self.fold_every}
        # A limit of its own for some models is chosen by the model's name, which is no part of its fingerprint.
        limit = {"limit": self.limit} if self.protocol.model_limits else {}
        return {"task": "eval", "winnow": __version__, "model": self.model, "protocol": rules, **folds, **limit}

    def cells(self, group: Group, methods: Sequence[Method]) -> list[list[str]]:
        """Hashes of all cells of a group: for every method those of the examples, in order."""
        config = self.config()
        places = [[group.benchmark, group.task, list(group.judging), content_hash(each)] for each in group.examples]
        return [[fingerprint([config, place, str(method), unsaid(method)]) for place in places] for method in methods]


def content_hash(example: Example) -> str:
    """A hash of an example's texts; its name is not one."""
    return fingerprint(texts_of(example))


def context_hash(example: Example) -> str:
    """A hash of an example's context, which others may share; of all its texts where it has none to share."""
    return fingerprint(example.context) if example.context.strip() else content_hash(example)
