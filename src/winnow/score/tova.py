"""TOVA: Transformers are Multi-State RNNs (Oren et al. 2024, arXiv 2401.06104)."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from winnow.parameters import check_choice, meaning
from winnow.score.base import LayerView, Scorer
from winnow.score.window import attention_mass


@dataclass(frozen=True)
class TOVA(Scorer):
    """Tokens are worth the attention of the last query, averaged over all heads: one set for the layer."""

    keep_last: bool = field(
        default=False, metadata=meaning("always keep the last token, as kvpress does and the paper does not")
    )

    def __post_init__(self) -> None:
        check_choice(self, "keep_last", (False, True))

    @property
    def guaranteed(self) -> int:
        return int(self.keep_last)

    def queries_needed(self, length: int) -> int:
        return min(1, length)

    def __call__(self, view: LayerView) -> Tensor:
        # s[t] = 1/Hq Σ_h A_h[N - 1, t]
        scores = attention_mass(view, 1).mean(dim=(0, 1))
        if self.keep_last:
            scores[-1] = torch.inf
        return scores.repeat(view.keys.shape[0], 1)
