"""Models with torch's own layers, which compute the same to the bit wherever they run."""

from __future__ import annotations

from unittest.mock import patch

from transformers import PreTrainedModel

from winnow.models import ModelSource, load_model, loading


def load_plain(source: ModelSource, dtype: str = "auto") -> PreTrainedModel:
    """The model on the CPU, as on a processor where none of Winnow's layers is faster than torch's."""
    with patch.object(loading, "use_own_layers", lambda model: None):
        return load_model(source, "cpu", dtype)
