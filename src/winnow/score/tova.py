"""TOVA: Transformers are Multi-State RNNs (Oren et al. 2024, arXiv 2401.06104)."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from winnow.parameters import check_choice, meaning
from winnow.score.base import Scorer
from winnow.score.window import attention_mass
from winnow.view import LayerView


@dataclass(frozen=True)
class TOVA(Scorer):
    """Scores tokens by the attention of the last query, averaged over all heads: one set of tokens for the layer."""

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
        attention = attention_mass(view, 1)
        if view.positions is None:
            scores = attention.mean(dim=(0, 1)).repeat(view.keys.shape[0], 1)
        else:
            scores = _mean_by_token(attention.mean(dim=1), view.positions)
        if self.keep_last:
            scores[:, -1] = torch.inf
        return scores


def _mean_by_token(attention: Tensor, positions: Tensor) -> Tensor:
    """[H, N] the mean over the heads of what each column's token gets [H, N], where heads hold different tokens.

    Summed on the CPU, where the order of the summands is always the same.
    """
    tokens, which = positions.cpu().unique(return_inverse=True)
    sums = torch.zeros(len(tokens), dtype=torch.float64, device="cpu")
    sums.index_add_(0, which.flatten(), attention.double().cpu().flatten())
    return (sums[which] / len(positions)).to(attention)
