"""Measures on key channels: how much their saliency depends on the token. SPARK, Sec. 4.1 and App. B.1."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from winnow.store.channels import window_queries
from winnow.view import LayerView


class KeyChannels(NamedTuple):
    """Two answers of every KV head to whether one choice of channels would do for all of its tokens."""

    variation: Tensor
    """[H] float64 on the CPU: coefficient of variation over the tokens of a channel's saliency, mean over channels."""
    overlap: Tensor
    """[H] float64 on the CPU: share of the head's fixed channels that are a token's own, mean over the tokens."""


def key_channels(view: LayerView, window: int) -> KeyChannels:
    """Variation and overlap of the saliencies w_tj = n_j·|k_tj|, n_j the root mean square of q_j over window and group.

    Half of the channels, the larger half where their number is odd, are a token's own: those of its largest w_tj. As
    many are fixed: those of the largest mean of w_tj² over the tokens, which is ThinK's rule.
    """
    sizes = window_queries(view, window).double().square().mean(1).sqrt()
    found = [_of_head(keys, size) for keys, size in zip(view.keys.detach(), sizes, strict=True)]
    variation, overlap = (torch.stack(each).cpu() for each in zip(*found, strict=True))
    return KeyChannels(variation, overlap)


def _of_head(keys: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
    """Scalars of keys [N, D] and n_j [D]. A channel that is salient for no token varies from none to none: 0."""
    saliency = keys.double().abs() * sizes
    variance, mean = torch.var_mean(saliency, dim=0, correction=0)
    variation = torch.where(mean > 0, variance.sqrt() / mean, 0.0)
    kept = keys.shape[1] - keys.shape[1] // 2
    fixed = torch.zeros(keys.shape[1], dtype=torch.bool, device=keys.device)
    fixed[_first(saliency.square().mean(0), kept)] = True
    return variation.mean(), fixed[_first(saliency, kept)].double().mean()


def _first(saliency: Tensor, count: int) -> Tensor:
    """The `count` channels of the largest saliency [..., D]; of equal ones the lower channel."""
    return saliency.sort(dim=-1, descending=True, stable=True).indices[..., :count]
