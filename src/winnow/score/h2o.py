"""H2O: Heavy-Hitter Oracle for Efficient Generative Inference of Large Language Models.

Zhang et al. 2023, arXiv 2306.14048.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from winnow.parameters import SLACK, check_choice, check_number, meaning
from winnow.score.base import Ranking, Scorer
from winnow.score.window import attention_paid
from winnow.transfers import sent
from winnow.view import LayerView


@dataclass(frozen=True)
class H2O(Scorer):
    """Scores tokens by the attention that all queries of the prompt paid them.

    A share of each head's slots goes to its most recent tokens, the rest to its heavy hitters. Attention is summed up
    while the model attends. If the prompt waits for its method (`defer`), it is summed up afterwards, which repeats
    half of the work of attention. In long generations, kept tokens carry their sums on, and later queries add to them.
    """

    recent: float = field(
        default=0.5, metadata=meaning("share of a head's slots for its most recent tokens, rounded up")
    )
    normalize: bool = field(default=False, metadata=meaning("divide the sum by the number of queries that see a token"))

    def __post_init__(self) -> None:
        check_number(self, "recent", 0, 1)
        check_choice(self, "normalize", (False, True))

    def queries_needed(self, length: int) -> int:
        return length

    @property
    def accumulates(self) -> bool:
        return True

    @property
    def carries_slots(self) -> bool:
        return True

    @property
    def sums_attention(self) -> bool:
        return True

    def __call__(self, view: LayerView) -> Tensor:
        return self.rank(view).scores

    def rank(self, view: LayerView) -> Ranking:
        """The scores; paid sums carry on, normalized or not."""
        before = 0 if view.carried is None else view.carried.shape[1]
        # s[t] = Σ_i A[i, t], mean over the query group
        paid = attention_paid(view, view.keys.shape[1] - before) if view.paid is None else view.paid
        if view.carried is not None:
            paid[:, :before] += view.carried
        return Ranking(paid / _seen_by(view) if self.normalize else paid, carried=paid)

    def refine(self, ranking: Ranking, slots: Tensor, view: LayerView) -> Tensor:
        """The scores with the last tokens of every head kept for sure."""
        recent = sent((slots.double() * self.recent - SLACK).ceil(), ranking.scores.device)
        held = torch.ones_like(ranking.scores) if view.absent is None else (~view.absent).float()
        from_last = held.flip(1).cumsum(1).flip(1)
        return ranking.scores.masked_fill(from_last <= recent[:, None], torch.inf)


def _seen_by(view: LayerView) -> Tensor:
    """[N] or [H, N]: how many queries saw each token, all from its own on."""
    if view.positions is None:
        return torch.arange(view.keys.shape[1], 0, -1, device=view.keys.device)
    return view.positions[:, -1:] + 1 - view.positions
