"""A model to be loaded in another process: its name, and all that says how."""

from __future__ import annotations

from dataclasses import dataclass

import transformers
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from winnow.models.loading import load_model
from winnow.models.source import open_model


@dataclass(frozen=True)
class ModelSpec:
    """A model by name, small enough to be sent; device, dtype and weights are those of `load_model`."""

    name: str
    """Directory, GGUF file or Hugging Face name."""
    device: str = "auto"
    dtype: str = "auto"
    weights: str = "auto"

    def load(self) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
        """The model with its weights, and its tokenizer. Turns off transformers' progress bars, which would interleave.

        Raises:
            ModelError: as `open_model` and `load_model`.
        """
        transformers.logging.disable_progress_bar()
        source = open_model(self.name)
        return load_model(source, self.device, self.dtype, weights=self.weights), source.tokenizer
