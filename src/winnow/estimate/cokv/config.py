"""The configuration of an estimation from coalitions, as its journal has it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, Literal

from winnow.estimate.cokv.plan import Sampled
from winnow.estimate.cokv.sampling import PlayerSplits
from winnow.estimate.errors import JournalError
from winnow.estimate.journal import Journal
from winnow.estimate.records import MOST
from winnow.estimate.seeds import SEEDS
from winnow.typed import Between, Sized, TypedError, read_as

_Heads = Annotated[int, Between(1, 2**16)]


@dataclass(frozen=True)
class CoalitionConfig:
    """The part of it that scores are computed from."""

    task: Literal["cokv"]
    model: str
    layers: _Heads
    heads: _Heads
    examples: Annotated[int, Between(1, 2**20)]
    window: Annotated[int, Between(0, MOST)]
    players: Annotated[int, Between(2, 2**16)]
    sizes: Annotated[list[_Heads], Sized(1)]
    seed: Annotated[int, SEEDS]
    balanced: bool
    pairs: Annotated[int, Between(1, MOST)]

    def plan(self) -> Sampled:
        """The coalitions of every batch. Raises ShapleyError where there are none."""
        return Sampled(PlayerSplits(self.players, tuple(self.sizes), self.seed, self.balanced), self.pairs)


def coalition_config(journal: Journal) -> CoalitionConfig:
    """The configuration in a journal's first line. Raises JournalError where it is none of coalitions."""
    known = {field.name for field in fields(CoalitionConfig)}
    # Names of others are of no use here; earlier versions did not write all of them.
    told = {name: value for name, value in journal.config.items() if name in known}
    try:
        found = read_as(CoalitionConfig, told)
        if found.layers * found.heads != found.players:
            raise TypedError(f"{found.layers} layers of {found.heads} heads are not {found.players} players")
    except TypedError as problem:
        raise JournalError(f"{journal.path}, line 1: {problem}. Give journals that winnow heads cokv wrote.") from None
    return found
