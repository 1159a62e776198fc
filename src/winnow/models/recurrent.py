"""Linear attention and short convolutions of models by the compiled kernels, in place of their modules' functions."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from winnow.models.calls import Function, Successors, replace_calls
from winnow.models.convolutions import convolution_for, step_for
from winnow.models.delta import delta_for, kimi_delta_for
from winnow.models.scans import scan_for, scan_step_for

BY_NAME: dict[str, Callable[[Function], Function | None]] = {
    "torch_chunk_gated_delta_rule": delta_for,
    "torch_recurrent_gated_delta_rule": delta_for,
    "chunk_kimi_delta_attention": kimi_delta_for,
    "recurrent_kimi_delta_attention": kimi_delta_for,
    "causal_conv1d_fn": convolution_for,
    "causal_conv1d_update": step_for,
    "mamba2_chunk_scan": scan_for,
    "mamba2_selective_state_update": scan_step_for,
}
"""Names that transformers' models give to the functions, in the module of each, and who tries them."""


def recur_in_one_pass(model: nn.Module) -> None:
    """Has a model's linear attention, scans of Mamba-2 and short convolutions be done by Winnow's kernels, in place.

    torch takes forty operators for a token of a layer, and for a prompt products of small matrices and systems of
    equations. Functions that compute anything else are left: each is tried before. See `replace_calls`.
    """
    replace_calls(model, successors)


def successors() -> Successors:
    """The kernels for a model's own functions."""
    return Successors(tuple(BY_NAME), lambda name, own: BY_NAME[name](own))
