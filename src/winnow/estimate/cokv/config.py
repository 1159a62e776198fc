"""The configuration of an estimation from coalitions, as its journal has it."""

from __future__ import annotations

from dataclasses import dataclass, fields

from winnow.estimate.cokv.plan import Sampled
from winnow.estimate.cokv.sampling import PlayerSplits
from winnow.estimate.errors import JournalError
from winnow.estimate.forms import Choice, Form, Listed, Misfit, Text, Truth, Whole, check_fields
from winnow.estimate.journal import Journal
from winnow.estimate.records import MOST

_EXAMPLES = 2**20
_HEADS = 2**16
_SEEDS = 2**63


@dataclass(frozen=True)
class CoalitionConfig:
    """The part of it that scores are computed from."""

    task: str
    model: str
    layers: int
    heads: int
    examples: int
    window: int
    players: int
    sizes: list[int]
    seed: int
    balanced: bool
    pairs: int

    def plan(self) -> Sampled:
        """The coalitions of every batch. Raises ShapleyError where there are none."""
        return Sampled(PlayerSplits(self.players, tuple(self.sizes), self.seed, self.balanced), self.pairs)


_FORMS: dict[str, Form] = {
    "task": Choice(("cokv",)),
    "model": Text(),
    "layers": Whole(1, _HEADS),
    "heads": Whole(1, _HEADS),
    "examples": Whole(1, _EXAMPLES),
    "window": Whole(0, MOST),
    "players": Whole(2, _HEADS),
    "sizes": Listed(Whole(1, _HEADS)),
    "seed": Whole(-_SEEDS, _SEEDS - 1),
    "balanced": Truth(),
    "pairs": Whole(1, MOST),
}


def coalition_config(journal: Journal) -> CoalitionConfig:
    """The configuration in a journal's first line. Raises JournalError where it is none of coalitions."""
    known = {field.name for field in fields(CoalitionConfig)}
    # Names of others are of no use here; earlier versions did not write all of them.
    told = {name: value for name, value in journal.config.items() if name in known}
    try:
        check_fields(_FORMS, told)
        found = CoalitionConfig(**told)
        if found.layers * found.heads != found.players:
            raise Misfit(f"{found.layers} layers of {found.heads} heads are not {found.players} players")
    except Misfit as problem:
        raise JournalError(f"{journal.path}, line 1: {problem}. Give journals that winnow heads cokv wrote.") from None
    return found
