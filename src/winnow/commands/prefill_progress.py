"""The bar of a prefill: tokens read, tokens a second, time left."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from transformers import PreTrainedModel

from winnow.commands.progress import progress_bar
from winnow.evaluate.layer_steps import layers_watched


@contextmanager
def reading(model: PreTrainedModel, tokens: int, text: str = "Reading") -> Iterator[None]:
    """A bar for what the model reads inside. tokens: those that it will be given; text: before the bar, plain."""
    with progress_bar(text, tokens, unit="tokens") as bar, layers_watched(model, bar.advance):
        yield
