"""Measurements of one compressed prefill, taken layer by layer while queries, keys and values are at hand.

Only figures and kept positions are stored, so memory stays that of a compressed prefill.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import PreTrainedModel

from winnow.cache import compress
from winnow.cache.guards import text_config
from winnow.cache.latent import is_latent
from winnow.cache.prefix import Prefix
from winnow.cache.replay import Words
from winnow.composition.method import Method
from winnow.composition.names import as_method
from winnow.diagnostics.attention import kept_attention
from winnow.diagnostics.channels import key_channels
from winnow.diagnostics.divergence import head_divergence
from winnow.diagnostics.kept import head_overlap, kept_mask, retained_diversity
from winnow.diagnostics.result import Diagnosis, LayerDiagnosis
from winnow.diagnostics.similarity import query_cosines
from winnow.errors import CacheError
from winnow.kernels.formats.heads import heads_of_slots
from winnow.models.devices import input_device
from winnow.score import Refiner, Scorer, SnapKV
from winnow.score.diversity import diversified
from winnow.store import Dense
from winnow.view import LayerView, last_queries

DIVERSIFY = 0.45
"""λ for scorers without a λ of their own: that of ApertureKV."""


def diagnose(
    model: PreTrainedModel,
    input_ids: Tensor,
    method: Method | str,
    *,
    window: int = 8,
    queries: int = 64,
    tokenizer: Words | None = None,
) -> Diagnosis:
    """Measures what a method keeps of a prompt, in one prefill and in memory linear in the prompt's length.

    Args:
        model: a decoder-only model, after `model.set_attn_implementation("winnow")`.
        input_ids: [1, N] or [N] tokens of the prompt.
        method: the result of `winnow.method(name, budget=...)`, or its text: "kvec @ 64".
        window: number of last queries whose similarity, divergence between heads and channel saliency are measured.
        queries: number of last queries whose attention over the kept slots is compared with that over all; each costs
            a row of N per head.
        tokenizer: the model's tokenizer, for methods that need it; see `winnow.compress`.

    Raises:
        CacheError: there are several prompts, or the prompt is empty; window or queries is below 1; the attention
            implementation is not "winnow"; or the method packs latents.
        ModelError: the model's cache cannot be compressed.
    """
    method = as_method(method)
    prompt = _one_prompt(input_ids).to(input_device(model))
    _check_positive("window", window)
    _check_positive("queries", queries)
    measuring = _Measuring(window, queries, _strength(method.scorer), isinstance(method.store, Dense))
    if is_latent(text_config(model)) and not measuring.dense:
        raise CacheError(
            "the effect of packing on a model with latent attention (MLA) cannot be measured; leave bits out."
        )
    compress(model, prompt, method, observer=measuring, tokenizer=tokenizer)
    return Diagnosis(method, prompt.shape[1], window, queries, measuring.strength, tuple(measuring.layers))


@dataclass
class _Measuring:
    """Measures every layer of one prompt while it is compressed."""

    window: int
    measured: int
    strength: float
    dense: bool
    """Kept slots are stored as they are."""
    layers: list[LayerDiagnosis] = field(default_factory=list)

    @property
    def queries(self) -> int:
        return max(self.window, self.measured)

    def see(self, view: LayerView, prefix: Prefix) -> None:
        packed = None if self.dense else _as_packed(view, prefix)
        self.layers.append(_measure(view, prefix, packed, self.window, self.measured, self.strength))


def _as_packed(view: LayerView, prefix: Prefix) -> LayerView:
    """The view with kept slots as they come back from their packed form."""
    slots = torch.arange(len(prefix.positions), device=view.keys.device)
    heads, positions = heads_of_slots(prefix.block.offsets, slots), prefix.positions.long()
    keys, values = view.keys.to(torch.float32, copy=True), view.values.to(torch.float32, copy=True)
    keys[heads, positions], values[heads, positions] = prefix.block.recover(slots)
    return view._replace(keys=keys, values=values)


def _measure(
    view: LayerView, prefix: Prefix, packed: LayerView | None, window: int, queries: int, strength: float
) -> LayerDiagnosis:
    kept = prefix.kept() if view.latents is None else prefix.kept() * len(view.keys)  # one set for all heads
    mask = kept_mask(kept, view.keys.shape[1])
    watching = last_queries(view.queries, window)
    attention = kept_attention(view, mask, queries, packed)
    channels = key_channels(view, window)
    return LayerDiagnosis(
        kept=tuple(positions.cpu() for positions in kept),
        rtd=retained_diversity(mask),
        iou=head_overlap(mask),
        cosines=query_cosines(watching),
        diversified_cosines=query_cosines(diversified(watching, strength)),
        divergence=head_divergence(view, min(window, view.queries.shape[1]), strength),
        mass=attention.mass,
        error=attention.error,
        channel_cv=channels.variation,
        channel_overlap=channels.overlap,
    )


def _strength(scorer: Scorer) -> float:
    """λ of the scorer's own query diversification, 0 included; ApertureKV's where it has none."""
    while isinstance(scorer, Refiner):
        scorer = scorer.base
    return scorer.diversify if isinstance(scorer, SnapKV) else DIVERSIFY


def _one_prompt(input_ids: Tensor) -> Tensor:
    """[1, N]"""
    prompt = input_ids[None] if input_ids.dim() == 1 else input_ids
    if prompt.dim() != 2 or prompt.shape[0] != 1 or prompt.shape[1] == 0:
        raise CacheError(
            f"input_ids has shape {list(input_ids.shape)}; give one prompt, [N] or [1, N] with at least one token, and "
            "call diagnose once for each of several."
        )
    return prompt


def _check_positive(name: str, count: int) -> None:
    if count < 1:
        raise CacheError(f"{name} is {count}; give a positive number of queries.")
