"""H2O: Heavy-Hitter Oracle for Efficient Generative Inference of Large Language Models.

Zhang et al. 2023, arXiv 2306.14048.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from winnow.parameters import check_choice, check_number, meaning
from winnow.score.base import LayerView, Ranking, Scorer
from winnow.score.window import attention_mass, reduce_group


@dataclass(frozen=True)
class H2O(Scorer):
    """Tokens are worth the attention that all queries of the prompt paid them.

    A share of each head's slots goes to its most recent tokens, the others to its heavy hitters. The work is
    that of the prompt's attention once more, in time but not in memory.
    """

    recent: float = field(
        default=0.5, metadata=meaning("share of a head's slots for its most recent tokens, rounded up")
    )
    normalise: bool = field(default=False, metadata=meaning("divide by the number of queries that see a token"))

    def __post_init__(self) -> None:
        check_number(self, "recent", 0, 1)
        check_choice(self, "normalise", (False, True))

    def queries_needed(self, length: int) -> int:
        return length

    def __call__(self, view: LayerView) -> Tensor:
        length = view.keys.shape[1]
        view = view._replace(keys=view.keys.float())  # once, not for every block of rows
        # s[t] = Σ_i A[i, t], mean over the query group
        scores = reduce_group(attention_mass(view, length), "mean")
        if self.normalise:
            # token t is seen by the N - t queries from its own on
            scores /= torch.arange(length, 0, -1, device=scores.device)
        return scores

    def refine(self, ranking: Ranking, slots: Tensor, view: LayerView) -> Tensor:
        scores, length = ranking.scores, ranking.scores.shape[1]
        first = length - (slots.double() * self.recent).ceil().to(scores.device)
        position = torch.arange(length, device=scores.device)
        return scores.masked_fill(position >= first[:, None], torch.inf)
