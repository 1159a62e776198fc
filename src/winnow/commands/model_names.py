"""Names of models in results."""

from __future__ import annotations

import os
from pathlib import Path

from transformers import PreTrainedModel

from winnow.bundled import NAME, is_bundled
from winnow.files import spelled_out
from winnow.models import ModelSource, weights_of
from winnow.models.dtypes import written_dtype
from winnow.models.gguf import stem


def model_name(source: ModelSource) -> str:
    """The name without the machine's folders, as text whatever the encoding of its folder's."""
    if is_bundled(source.name):
        return NAME
    if source.gguf:
        return spelled_out(stem(source.name))
    path = Path(source.name).expanduser()
    # Not resolved: a link is named by its owner, the folder behind it often by a hash.
    return spelled_out(os.path.basename(os.path.abspath(path)) if path.is_dir() else source.name)


def model_line(source: ModelSource, model: PreTrainedModel) -> str:
    """The start of a heading: "model: winnow-bundled, float32 on cpu", or "…, bfloat16 with int4 weights on cpu"."""
    quantized = weights_of(model)
    kind = dtype_name(model) if quantized is None else f"{dtype_name(model)} with {quantized} weights"
    return f"model: {model_name(source)}, {kind} on {model.device.type}"


def dtype_name(model: PreTrainedModel) -> str:
    """The type of a model's weights: "float32"."""
    return written_dtype(model.dtype)
