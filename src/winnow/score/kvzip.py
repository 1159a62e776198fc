"""KVzip: Query-Agnostic KV Cache Compression with Context Reconstruction (Kim et al. 2025, arXiv 2505.23416)."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from winnow.errors import MethodError
from winnow.parameters import check_choice, check_count, meaning
from winnow.score import on_gpu
from winnow.score.base import Replayer
from winnow.score.output_norms import output_norms
from winnow.score.window import attention_blocks
from winnow.view import Extra, LayerView, ReplayView

_LEAST_NORM = 1e-12
"""A hidden state of zeros (a padding token's) must not make scores infinite."""


@dataclass(frozen=True)
class KVzip(Replayer):
    """Scores tokens by the most attention that they get while the model repeats the prompt.

    A replay asks the model, after the whole prompt, to repeat a chunk of it, and feeds it the right answer. A is the
    attention of the n tokens that are read in this way over the first `sinks` tokens, the chunk and themselves:

        s[t] = max over the rows i of the replay, and over the GQA group, of A[i, t]

    `normalize` makes it KVzip+: A[i, t]·‖W_o v_t‖₂/‖h_i‖₂, with W_o of the query head and h_i the hidden state that is
    the input of the layer's attention.
    """

    chunk: int = field(default=2048, metadata=meaning("tokens of the prompt that are repeated at a time"))
    sinks: int = field(default=4, metadata=meaning("first tokens, always kept, that every replay also sees"))
    normalize: bool = field(
        default=False, metadata=meaning("weight attention by a value's effect on the output, per hidden state (KVzip+)")
    )

    def __post_init__(self) -> None:
        check_count(self, "chunk", 1)
        check_count(self, "sinks", 0)
        check_choice(self, "normalize", (False, True))

    @property
    def guaranteed(self) -> int:
        return self.sinks

    @property
    def extras(self) -> Extra:
        return super().extras | Extra.OUTPUT_PROJECTION if self.normalize else super().extras

    @property
    def hidden_norms(self) -> bool:
        return self.normalize

    def __call__(self, view: LayerView) -> Tensor:
        """The scores [H, N]. Raises MethodError for a view of a prompt that was not read again."""
        if view.replayed is None:
            raise MethodError(
                f"KVzip needs a replay of the prompt, which layer {view.layer} lacks: give LayerView.replayed, as "
                "caches do."
            )
        scores = view.replayed.clone()
        scores[:, : self.sinks] = torch.inf
        return scores

    def replayed(self, view: ReplayView) -> Tensor:
        layer, chunk = view.layer, slice(view.first, view.first + view.size)
        values = output_norms(layer, chunk)[:, :, None] if self.normalize else None
        if on_gpu.serves(layer):
            return _strongest_on_a_gpu(view, values)
        scores = layer.keys.new_zeros((layer.keys.shape[0], view.size), dtype=torch.float32)
        for block in attention_blocks(layer, layer.queries.shape[1]):
            paid = block.attention[..., chunk]
            if values is not None:
                paid = paid * values / _row_norms(view, block.first, paid.shape[2])
            torch.maximum(scores, paid.amax(dim=(1, 2)), out=scores)
        return scores


def _strongest_on_a_gpu(view: ReplayView, values: Tensor | None) -> Tensor:
    """[H, C]: the most that any row pays to the tokens of the chunk; values [H, G, 1, C], where they count."""
    from winnow.kernels.gpu.paying import LARGEST

    rows = view.layer.queries.shape[1]
    shares = None if values is None else _row_norms(view, view.first + view.size, rows)[:, 0].reciprocal()
    most = on_gpu.normalized(view.layer, rows).paid(view.first + view.size, LARGEST, weights=shares)[..., view.first :]
    return (most if values is None else most * values[:, :, 0]).amax(dim=1)


def _row_norms(view: ReplayView, first: int, rows: int) -> Tensor:
    """‖h_i‖₂ of some rows, [rows, 1]. Raises MethodError for a view without them."""
    if view.hidden_norms is None:
        raise MethodError("KVzip+ needs the norms of hidden states: give ReplayView.hidden_norms, as caches do.")
    start = first - view.first - view.size
    return view.hidden_norms[start : start + rows, None].clamp(min=_LEAST_NORM)
