"""Parts of methods as somebody outside of winnow writes them, and packages that bring them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from winnow.allocate import Allocation, Allocator, SlotPlan
from winnow.parameters import meaning
from winnow.score import Refiner, Scorer, SnapKV
from winnow.store import Kivi
from winnow.view import LayerView


@dataclass(frozen=True)
class ValueNorm(Scorer):
    """Keeps tokens with large values.

    The first `sinks` are always kept.
    """

    sinks: int = field(default=4, metadata=meaning("first tokens that are always kept"))
    power: float = 1.0

    def __post_init__(self) -> None:
        if self.sinks > 100:
            raise ValueError("more sinks than sense")

    @property
    def guaranteed(self) -> int:
        return self.sinks

    def __call__(self, view: LayerView) -> Tensor:
        scores = view.values.float().norm(dim=-1) ** self.power
        scores[:, : self.sinks] = torch.inf
        return scores


@dataclass(frozen=True)
class FirstLayers(Allocator):
    """The first `layers` layers share the slots that nobody is guaranteed."""

    layers: int = field(default=1, metadata=meaning("layers that get more"))

    def layer_totals(self, plan: SlotPlan) -> list[int]:
        totals = [heads * plan.guaranteed for heads in plan.heads]
        left = plan.slots - sum(totals)
        for layer, heads in list(enumerate(plan.heads))[: self.layers]:
            more = min(left, heads * plan.length - totals[layer])
            totals[layer] += more
            left -= more
        return totals

    def head_slots(self, scores: Tensor, allocation: Allocation, layer: int) -> Tensor:
        heads = scores.shape[0]
        share, rest = divmod(allocation.totals[layer], heads)
        return torch.tensor([share + (head < rest) for head in range(heads)])


@dataclass(frozen=True)
class Squared(Refiner):
    """Compares squares."""

    base: Scorer = field(default_factory=SnapKV)

    def refine(self, ranking, slots, view):
        return ranking.scores**2


@dataclass(frozen=True)
class TwoBits(Kivi):
    """Two bits in every head."""

    width: int = 2


def install(folder: Path, name: str, entries: dict[str, str], source: str) -> None:
    """A package as pip leaves it in a folder: a module, and metadata with entry points of the group of methods."""
    (folder / f"{name}.py").write_text(source, encoding="utf-8")
    metadata = folder / f"{name}-1.2.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n", encoding="utf-8")
    listed = "".join(f"{key} = {value}\n" for key, value in entries.items())
    (metadata / "entry_points.txt").write_text(f"[winnow.methods]\n{listed}", encoding="utf-8")
