"""Results of a diagnosis."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from winnow.composition.method import Method
from winnow.diagnostics.pairs import mean_over_pairs


@dataclass(frozen=True, eq=False)
class LayerDiagnosis:
    """The diagnosis of one compressed layer. Tensors are on the CPU."""

    kept: tuple[Tensor, ...]
    """Kept positions of every KV head, int64, ascending."""
    rtd: float
    """Retained-token diversity: |union of the heads' kept sets| / N."""
    iou: Tensor
    """[H, H] float64, intersection over union of the kept sets of two heads."""
    cosines: Tensor
    """[Hq, w, w] float64, cosine of every two queries of the window, or of the prompt if it is shorter."""
    diversified_cosines: Tensor
    """The same after query diversification."""
    divergence: Tensor
    """[Hq, Hq] float64, Jensen-Shannon divergence, in nats, of the token scores of two query heads, after query
    diversification."""
    mass: Tensor
    """[H] float64, share of the last queries' attention that falls on kept tokens, mean over the query group."""
    error: float
    """Relative L2 error of the last queries' attention output (before the output projection) against the full cache."""
    channel_cv: Tensor
    """[H] float64, coefficient of variation over the tokens of a key channel's saliency, mean over the channels."""
    channel_overlap: Tensor
    """[H] float64, overlap of each token's most salient half of the channels with the half that is most salient over
    all tokens, as a share, mean over the tokens."""

    @property
    def slots(self) -> list[int]:
        """Kept tokens of every KV head."""
        return [len(positions) for positions in self.kept]

    @property
    def mean_iou(self) -> float | None:
        """Mean over the pairs of heads; None for a single head."""
        return mean_over_pairs(self.iou)

    @property
    def cosine(self) -> float | None:
        """Mean pairwise cosine of the window's queries, mean over the query heads; None for a single query."""
        return mean_over_pairs(self.cosines)

    @property
    def diversified_cosine(self) -> float | None:
        """The same after query diversification."""
        return mean_over_pairs(self.diversified_cosines)

    @property
    def mean_divergence(self) -> float | None:
        """Mean over the pairs of query heads; None for a single head."""
        return mean_over_pairs(self.divergence)

    def as_dict(self) -> dict[str, Any]:
        """All figures as plain values for JSON; cosines are means over the query heads, [w, w]."""
        return {
            "slots": self.slots,
            "rtd": self.rtd,
            "mean_iou": self.mean_iou,
            "iou": self.iou.tolist(),
            "cosine": self.cosine,
            "diversified_cosine": self.diversified_cosine,
            "mean_cosines": self.cosines.mean(dim=0).tolist(),
            "mean_diversified_cosines": self.diversified_cosines.mean(dim=0).tolist(),
            "mean_divergence": self.mean_divergence,
            "divergence": self.divergence.tolist(),
            "mass": self.mass.tolist(),
            "error": self.error,
            "channel_cv": self.channel_cv.tolist(),
            "channel_overlap": self.channel_overlap.tolist(),
            "kept": [positions.tolist() for positions in self.kept],
        }


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """Measurements of what a method keeps of one prompt and what it loses."""

    method: Method
    tokens: int
    """N, the number of tokens of the prompt."""
    window: int
    """The most last queries that cosines and channel saliency are measured on; a shorter prompt has fewer."""
    queries: int
    """The most last queries that mass and error are measured on."""
    diversify: float
    """λ of the diversified cosine and of the divergence."""
    layers: tuple[LayerDiagnosis, ...]
    """The compressed layers, in order."""

    @property
    def slots(self) -> list[list[int]]:
        """L lists of H: kept tokens of every KV head."""
        return [layer.slots for layer in self.layers]

    @property
    def mean_slots(self) -> float:
        """Mean over all KV heads."""
        return fmean(slots for layer in self.slots for slots in layer)

    @property
    def slot_range(self) -> tuple[int, int]:
        """Fewest and most slots of a KV head."""
        counts = [slots for layer in self.slots for slots in layer]
        return min(counts), max(counts)

    @property
    def retention(self) -> Tensor:
        """[L, N] int64: how many heads of a layer keep each token."""
        return torch.stack([torch.cat(layer.kept).bincount(minlength=self.tokens) for layer in self.layers])

    @property
    def coverage(self) -> int:
        """Number of tokens that at least one head of any layer keeps."""
        return int(self.retention.any(dim=0).sum())

    @property
    def coverage_share(self) -> float:
        """The same as a share of the prompt."""
        return self.coverage / self.tokens

    @property
    def rtd(self) -> float:
        """Retained-token diversity, mean over the layers."""
        return fmean(layer.rtd for layer in self.layers)

    @property
    def iou(self) -> float | None:
        """Mean over the pairs of heads, then over the layers; None where every layer has one KV head."""
        return _mean(layer.mean_iou for layer in self.layers)

    @property
    def cosine(self) -> float | None:
        """Mean over the layers; None for a single query."""
        return _mean(layer.cosine for layer in self.layers)

    @property
    def diversified_cosine(self) -> float | None:
        """Mean over the layers; None for a single query."""
        return _mean(layer.diversified_cosine for layer in self.layers)

    @property
    def divergence(self) -> float | None:
        """Mean over the pairs of query heads, then over the layers; None where every layer has one."""
        return _mean(layer.mean_divergence for layer in self.layers)

    @property
    def mass(self) -> list[list[float]]:
        """L lists of H: share of attention on kept tokens."""
        return [layer.mass.tolist() for layer in self.layers]

    @property
    def mean_mass(self) -> float:
        """Mean over all KV heads."""
        return fmean(mass for layer in self.mass for mass in layer)

    @property
    def least_mass(self) -> float:
        """Share of attention on kept tokens in the KV head that loses most."""
        return min(mass for layer in self.mass for mass in layer)

    @property
    def error(self) -> float:
        """Relative error of the attention output, mean over the layers."""
        return fmean(layer.error for layer in self.layers)

    @property
    def worst_layer(self) -> int:
        """The layer with the largest error."""
        return max(range(len(self.layers)), key=lambda index: self.layers[index].error)

    @property
    def channel_cv(self) -> float:
        """Coefficient of variation of the saliency of key channels, mean over all KV heads."""
        return fmean(value for layer in self.layers for value in layer.channel_cv.tolist())

    @property
    def channel_overlap(self) -> float:
        """Overlap of a token's most salient channels with those of all tokens, mean over all KV heads."""
        return fmean(value for layer in self.layers for value in layer.channel_overlap.tolist())

    def as_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return {
            "method": self.method.name,
            "budget": str(self.method.budget),
            "prompt_tokens": self.tokens,
            "window": self.window,
            "queries": self.queries,
            "diversify": self.diversify,
            "slots_mean": self.mean_slots,
            "slots_min": self.slot_range[0],
            "slots_max": self.slot_range[1],
            "coverage_tokens": self.coverage,
            "coverage": self.coverage_share,
            "rtd": self.rtd,
            "iou": self.iou,
            "cosine": self.cosine,
            "diversified_cosine": self.diversified_cosine,
            "divergence": self.divergence,
            "mass_mean": self.mean_mass,
            "mass_min": self.least_mass,
            "error_mean": self.error,
            "error_worst_layer": self.worst_layer,
            "channel_cv": self.channel_cv,
            "channel_overlap": self.channel_overlap,
            "layers": [layer.as_dict() for layer in self.layers],
        }


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
