"""Rows of a GGUF file that a model's parameters consist of, as transformers puts them together.

transformers has code for every architecture: names of tensors, an order of rows, tensors that become one. Here that
code is given numbers of rows in place of weights, and so tells where each row of a parameter comes from.
"""

from __future__ import annotations

from functools import cache
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from winnow.models.gguf_rows import FileRows, FileTensor
from winnow.models.gguf_strings import lists_in_one_pass
from winnow.models.meanwhile import meanwhile

_STEP, _FIRST = 977, 311
"""Row n is marked as n * 977 + 311: arithmetic that is meant for weights turns no mark into another row's."""


def parameters_in(path: str, model: PreTrainedModel, dtype: torch.dtype) -> dict[str, Tensor | FileRows] | None:
    """The parameters of a model that a file has: rows to read in a dtype, and of vectors the numbers.

    model: its parameters tell shapes. None where transformers' code does more to weights than to arrange their rows.
    """
    try:
        tensors, marked = _marked(path, model)
        shapes = {name: each.shape for name, each in model.state_dict().items()}
        found = {name: _parameter(each, tensors, dtype) for name, each in marked.items()}
    except Exception:  # whatever such code raises that finds no weights
        return None
    return found if all(each.shape == shapes.get(name) for name, each in found.items()) else None


def _marked(path: str, model: PreTrainedModel) -> tuple[list[FileTensor], dict[str, Tensor]]:
    """Tensors of a file, and what transformers makes of their marks [..., 1] and of vectors, by names of parameters."""
    import gguf
    from transformers import modeling_gguf_pytorch_utils as unpacking  # what it imports is for such files only

    with lists_in_one_pass():
        reader = gguf.GGUFReader(path)
    (architecture,) = unpacking.read_field(reader, "general.architecture")
    config = model.config.get_text_config(decoder=True).to_dict()
    processor = unpacking.TENSOR_PROCESSORS.get(architecture, unpacking.TensorProcessor)(config=config)
    # It wants the same table of an architecture's names for each module.
    with meanwhile(gguf, "get_tensor_name_map", cache(gguf.get_tensor_name_map)):
        names = unpacking.get_gguf_hf_weights_map(model, processor)
    made: dict[str, Any] = {"config": config, "tensors": {}}
    tensors: list[FileTensor] = []
    for tensor in reader.tensors:
        vector = tensor.data.ndim < 2
        weights = gguf.dequantize(tensor.data, tensor.tensor_type) if vector else _marks(tensor, tensors)
        result = processor.process(weights=weights, name=tensor.name, tensor_key_mapping=names, parsed_parameters=made)
        if result.name in names:
            made["tensors"][names[result.name]] = torch.from_numpy(np.array(result.weights))
    return tensors, made["tensors"]


def _marks(tensor: Any, tensors: list[FileTensor]) -> np.ndarray:
    """The marks of a tensor's rows [..., 1], in the order of all tensors, of which it becomes the last."""
    first = tensors[-1].first + len(tensors[-1].rows) if tensors else 0
    *outer, width = reversed(tensor.shape.tolist())
    rows = np.ascontiguousarray(tensor.data).view(np.uint8).reshape(prod(outer), -1)
    tensors.append(FileTensor(first, rows, tensor.tensor_type.name, width))
    marks = np.arange(first, first + len(rows), dtype=np.float64) * _STEP + _FIRST
    return marks.reshape(*outer, 1)


def _parameter(found: Tensor, tensors: list[FileTensor], dtype: torch.dtype) -> Tensor | FileRows:
    """Raises ValueError for marks that something was done to."""
    if found.dtype != torch.float64:
        return found.to(dtype)
    rows, rest = np.divmod(found.numpy() - _FIRST, _STEP)
    if found.shape[-1] != 1 or rest.any():
        raise ValueError("These are no marks of rows.")
    return FileRows(tensors, rows[..., 0].astype(np.int64), dtype)
