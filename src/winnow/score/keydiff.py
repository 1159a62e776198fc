"""KeyDiff: Key Similarity-Based KV Cache Eviction (Park et al. 2025, arXiv 2504.15364)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from winnow.parameters import check_count, meaning
from winnow.score.base import Ranking, Scorer
from winnow.score.blocks import tokens_at_once
from winnow.select import best_tokens
from winnow.view import LayerView

_CHUNK = 1024
"""Tokens converted to fp32 at once on a CPU."""
_LEAST_NORM = 1e-12
"""A zero key has no direction; its cosine is 0."""


@dataclass(frozen=True)
class KeyDiff(Scorer):
    """Scores tokens by how little their key resembles the mean direction of all keys. Needs no queries.

    The paper reads prompts in blocks and evicts after each. With `block`, a head first holds as many tokens as it has
    slots, then chooses again among these and every next block. In long generations, and if a prompt itself comes in
    blocks (`fold_turns`), every fold is a block.
    """

    block: int = field(
        default=0, metadata=meaning("tokens of the prompt to read before each eviction; 0 for all (128 in the paper)")
    )

    def __post_init__(self) -> None:
        check_count(self, "block", 0)

    def __call__(self, view: LayerView) -> Tensor:
        return _differences(view.keys)

    def refine(self, ranking: Ranking, slots: Tensor, view: LayerView) -> Tensor:
        """The scores, or what a prompt in blocks leaves for sure."""
        if not self.block or view.positions is not None:
            return ranking.scores
        final = ranking.scores.clone()
        for count in slots.unique().tolist():  # nearly always one or two
            heads = (slots == count).nonzero().to(final.device)
            final[heads, self._left(view.keys[heads[:, 0]], count)] = torch.inf
        return final

    def _left(self, keys: Tensor, count: int) -> Tensor:
        """[H, count] the tokens that blocks of keys [H, N, D] leave of each head, ascending."""
        heads, length, dim = keys.shape
        left = torch.arange(count, device=keys.device).expand(heads, -1)
        for start in range(count, length, self.block):
            new = torch.arange(start, min(start + self.block, length), device=keys.device).expand(heads, -1)
            tokens = torch.cat([left, new], dim=1)
            scores = _differences(keys.gather(1, tokens[..., None].expand(-1, -1, dim)))
            left = tokens[best_tokens(scores, torch.full((heads,), count, device="cpu"))].view(heads, count)
        return left


def _differences(keys: Tensor) -> Tensor:
    """-cos(k_t, anchor) [H, N] fp32 of keys [H, N, D]."""
    heads, length, dim = keys.shape
    norms = keys.new_empty((heads, length), dtype=torch.float32)
    anchor = keys.new_zeros((heads, 1, dim), dtype=torch.float32)
    # anchor = direction of 1/N Σ_t k_t/‖k_t‖
    for chunk, norm in zip(_chunks(keys), norms.split(tokens_at_once(keys, _CHUNK), dim=1), strict=True):
        norm.copy_(torch.linalg.vector_norm(chunk, dim=-1).clamp_(min=_LEAST_NORM))
        anchor += norm.reciprocal()[:, None] @ chunk
    anchor /= torch.linalg.vector_norm(anchor, dim=-1, keepdim=True).clamp_(min=_LEAST_NORM)
    # s[t] = -cos(k_t, anchor)
    along = torch.cat([anchor @ chunk.transpose(1, 2) for chunk in _chunks(keys)], dim=-1)
    return -along[:, 0] / norms


def _chunks(keys: Tensor) -> Iterator[Tensor]:
    return (chunk.float() for chunk in keys.split(tokens_at_once(keys, _CHUNK), dim=1))
