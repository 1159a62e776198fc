"""Offsets of the positions behind images, which models with positions in three dimensions (Qwen-VL and its kin) need.

Such a model keeps them itself, those of the prompt that it read last, and no cache holds them. Contexts do: one that
was compressed before another, or in another process, would be continued from wrong places otherwise.
"""

from __future__ import annotations

from torch import Tensor, nn
from transformers import PreTrainedModel

_NAME = "rope_deltas"


def offsets_of(model: PreTrainedModel) -> Tensor | None:
    """int64 [R, 1] position less index of the tokens behind the prompt that was read last; None for their index."""
    keeper = _keeper(model)
    return None if keeper is None else getattr(keeper, _NAME)


def set_offsets(model: PreTrainedModel, offsets: Tensor | None) -> None:
    """Has the model go on behind a prompt with these offsets. Nothing where it keeps none."""
    keeper = _keeper(model)
    if keeper is not None:
        setattr(keeper, _NAME, None if offsets is None else offsets.to(model.device))


def _keeper(model: PreTrainedModel) -> nn.Module | None:
    inner: nn.Module = model.base_model
    return inner if hasattr(inner, _NAME) else None
