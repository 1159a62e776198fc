"""Offsets of the positions behind images, which models with positions in three dimensions (Qwen-VL and its kin) need.

Such a model keeps them itself, those of the prompt that it read last, and no cache holds them. Contexts do: one that
was compressed before another, or in another process, would be continued from wrong places otherwise.
"""

from __future__ import annotations

from torch import Tensor, nn
from transformers import PreTrainedModel

from winnow.models.adapters import without_wrappers
from winnow.models.devices import input_device

_NAME = "rope_deltas"


def keeps_offsets(model: PreTrainedModel) -> bool:
    """True for a model whose tokens behind images have offsets."""
    return _keeper(model) is not None


def offsets_of(model: PreTrainedModel) -> Tensor | None:
    """int64 [R, 1] position less index of the tokens behind the prompt that was read last; None for their index."""
    keeper = _keeper(model)
    return None if keeper is None else getattr(keeper, _NAME)


def set_offsets(model: PreTrainedModel, offsets: Tensor | None) -> None:
    """Has the model go on behind a prompt with these offsets. Nothing where it keeps none."""
    keeper = _keeper(model)
    if keeper is not None:
        setattr(keeper, _NAME, None if offsets is None else offsets.to(input_device(model)))


def _keeper(model: PreTrainedModel) -> nn.Module | None:
    # An adapter's wrapper has a base_model of its own, which is the whole model.
    inner: nn.Module = without_wrappers(model).base_model
    return inner if hasattr(inner, _NAME) else None
