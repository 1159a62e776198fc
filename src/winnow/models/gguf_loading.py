"""Weights of a GGUF file, read one by one in place of transformers' unpacking of the whole file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import RLock
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from winnow.models.gguf_rows import FileRows
from winnow.models.gguf_tracing import parameters_in
from winnow.models.meanwhile import meanwhile

Change = Callable[[PreTrainedModel, dict[str, Tensor | FileRows]], dict[str, Any]]
"""Given a model and its parameters in a file, tells what transformers reads in their place."""
_ONE_AT_A_TIME = RLock()


@contextmanager
def read_row_by_row(change: Change | None = None) -> Iterator[None]:
    """Within it, transformers reads a GGUF file's weights when it puts them into the model, and not all before.

    Architectures for which it does more than to arrange rows, and those that it reads one by one itself, it reads as it
    does; nothing is changed then.
    """
    from transformers import modeling_gguf_pytorch_utils as unpacking  # what it imports is for such files only

    def load(path: str, return_tensors: bool = False, model_to_load: Any = None, torch_dtype: Any = None) -> Any:
        if not return_tensors:
            return plain(path)
        found = parameters_in(path, model_to_load, torch_dtype or torch.float32)
        if found is None:
            return plain(path, return_tensors, model_to_load, torch_dtype)
        return {"tensors": found if change is None else change(model_to_load, found)}

    with _ONE_AT_A_TIME:
        plain = unpacking.load_gguf_checkpoint
        with meanwhile(unpacking, "load_gguf_checkpoint", load):
            yield
