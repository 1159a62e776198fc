"""Methods held to a model before its weights are loaded, and before it reads anything."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from weakref import ref

import torch
from transformers import PreTrainedModel

from winnow.cache.arriving import RowParts
from winnow.cache.compressed import CompressedCache
from winnow.cache.compression import Compression
from winnow.cache.guards import check_causal, text_config
from winnow.cache.hybrid import heads_of
from winnow.cache.latent import query_dim, slot_dims
from winnow.cache.latent_layer import check_sharing
from winnow.cache.layer_config import of_full_layers
from winnow.composition.method import Method
from winnow.composition.names import method
from winnow.errors import ModelError
from winnow.models import skeleton_in


def check_directory(directory: Path) -> None:
    """Holds the model of a configuration in a directory to what a cache needs, without its weights.

    Raises ModelError or CacheError, as a cache of it would.
    """
    skeleton = skeleton_in(directory)
    skeleton.set_attn_implementation("winnow")
    CompressedCache(skeleton, method("full"))


def check_shapes(
    skeleton: PreTrainedModel, methods: Iterable[Method], lengths: Iterable[int], fold_every: int | None = None
) -> None:
    """Holds methods to the shapes of a model, whose weights need not be there, and to lengths of prompts.

    fold_every: see `CompressedCache`. Raises MethodError for a method without head scores of the model, with those of
    another shape, or that gives heads what they cannot have; BudgetError where bytes do not hold what a method always
    keeps of a prompt, or needs to fold; ModelError for a model that is not causal, or has no full attention.
    """
    check_causal(skeleton)
    config, tokens = text_config(skeleton), sorted(set(lengths))
    heads = heads_of(skeleton, config)
    if not heads:
        raise ModelError(f"{type(skeleton).__name__} has no full-attention layer, so nothing can be compressed.")
    slot = torch.empty(1, 1, 1, dtype=skeleton.dtype, device="meta")
    keys, values = (slot.expand(1, 1, dim) for dim in slot_dims(config))
    queries = of_full_layers(config).num_attention_heads
    shapes = RowParts(slot.expand(queries, 1, query_dim(config)), keys, values)
    for each in methods:
        check_sharing(config, each, folds=fold_every is not None)
        served = each.for_model(skeleton.config.name_or_path, tuple(heads))
        for length in tokens if each.budget.unit == "bytes" else ():
            Compression(served, heads, ref(skeleton), fold_every=fold_every).allocation(0, 0, length, shapes)


def check_modules(model: PreTrainedModel, methods: Iterable[Method]) -> None:
    """Holds methods to the modules of a model with its weights.

    Raises ModelError where it does not show what a method asks for (how queries are rotated, a plain output
    projection), and what `check_shapes` does.
    """
    for each in methods:
        CompressedCache(model, each, defer=each.scorer.replayer is not None)
