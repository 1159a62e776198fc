"""Norms of what values add to a layer's output."""

from __future__ import annotations

import torch
from torch import Tensor

from winnow.errors import MethodError
from winnow.kernels.gpu import support
from winnow.score import on_gpu
from winnow.score.blocks import numbers_at_once
from winnow.view import LayerView

_BLOCK = 1 << 23
"""Projected numbers to hold at once on a CPU (32 MiB in fp32)."""


def output_norms(view: LayerView, tokens: slice) -> Tensor:
    """‖W_o v_t‖₂ [H, G, T] in fp32 of some tokens' values, for every query head of the group.

    Raises MethodError for a view without its output projection.
    """
    if view.output_projection is None:
        raise MethodError(
            f"the norms of values need the output projection of layer {view.layer}: give LayerView.output_projection, "
            "as caches do."
        )
    values = view.values[:, tokens]
    heads, _, dim = values.shape
    queries, _, width = view.output_projection.shape
    if support.serves(values):
        return on_gpu.output_sizes(values, view.output_projection, squared=True).sqrt().unflatten(0, (heads, -1))
    matrices = view.output_projection.float().view(heads, -1, dim, width)
    step = max(1, numbers_at_once(values.device, _BLOCK) // (queries * width))
    norms = [(part.float()[:, None] @ matrices).norm(dim=-1) for part in values.split(step, dim=1)]
    return torch.cat(norms, dim=-1)
