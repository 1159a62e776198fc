"""Centers of a model's queries, measured on a text: the artifact of TriAttention."""

from __future__ import annotations

from datetime import date
from hashlib import sha256

import torch
from torch import Tensor
from transformers import PreTrainedModel

from winnow.cache import CompressedCache
from winnow.composition.method import Method
from winnow.composition.names import method
from winnow.errors import CacheError, ModelError
from winnow.heads.centers import QueryCenters
from winnow.models.cache_argument import with_cache
from winnow.models.devices import input_device
from winnow.models.last_logits import last_only


def measure_centers(model: PreTrainedModel, input_ids: Tensor) -> QueryCenters:
    """The centers of the queries of a text's tokens [1, N] or [N], without its first four.

    One pass of the whole text, whose keys and values are let go of layer by layer. The model must attend with "winnow".

    Raises:
        CacheError: a text of fewer than five tokens.
        ModelError: a rotation that is not understood, or layers with different heads.
    """
    ids = input_ids.reshape(1, -1).to(input_device(model))
    chosen: Method = method("triattention", 8)
    if ids.shape[1] <= chosen.scorer.guaranteed:
        raise CacheError(f"a text of {ids.shape[1]} tokens has no queries to measure; give one of a few thousand.")
    cache = CompressedCache(model, chosen, fold_every=1)  # moments are kept for a fold
    with torch.no_grad():
        model(ids, **with_cache(model, cache), **last_only(model))
    moments = [prefix.moments for layer in cache.compressed_layers() for prefix in layer.prefixes if prefix is not None]
    found = [each for each in moments if each is not None]
    if len({each.mean.shape for each in found}) != 1:
        raise ModelError("the layers of this model have different query heads, which one table of centers cannot hold.")
    mean = torch.stack([each.mean for each in found])
    sizes = torch.zeros_like(mean)
    for layer, each in enumerate(found):
        if each.sizes is not None:
            sizes[layer, :, : each.sizes.shape[-1]] = each.sizes
    return QueryCenters(
        mean,
        sizes,
        ids.shape[1] - chosen.scorer.guaranteed,
        str(getattr(model.config, "name_or_path", "")),
        text_hash=sha256(ids.to("cpu", torch.int64).contiguous().numpy().tobytes()).hexdigest(),
        date=date.today().isoformat(),
    )
