"""Models in the wrapper of an adapter (PEFT), and adapters whose tokens no cache can count."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedModel

from winnow.errors import ModelError


def without_wrappers(model: PreTrainedModel) -> PreTrainedModel:
    """The model itself, where PEFT or torch.compile wraps it: its forward pass names what it takes."""
    inner: Any = getattr(model, "_orig_mod", model)
    return inner.get_base_model() if hasattr(inner, "get_base_model") else inner


def check_prompt_learning(model: PreTrainedModel) -> None:
    """Raises ModelError for an adapter that puts tokens of its own before every input (prompt or prefix tuning)."""
    config = getattr(model, "active_peft_config", None)
    if getattr(config, "is_prompt_learning", False):
        raise ModelError(
            f"this model has a prompt-learning adapter ({type(config).__name__}), which puts tokens of its own before "
            "every input; they are not part of the prompt to compress. Use an adapter that changes the model's layers "
            "(LoRA, IA3), or the model without the adapter: model.get_base_model()."
        )
