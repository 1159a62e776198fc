"""The logits of a prompt's last token alone, for models that can do without all others."""

from __future__ import annotations

from transformers import PreTrainedModel


def last_only(model: PreTrainedModel) -> dict[str, int]:
    """The argument of a model's forward pass for it; empty where the model has none.

    Logits of every token of a prompt would take more memory than its cache. The model is asked, as wrappers (adapters,
    torch.compile) have a forward of their own.
    """
    takes = getattr(model, "_supports_logits_to_keep", None)
    return {"logits_to_keep": 1} if takes is not None and takes() else {}
