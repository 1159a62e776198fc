"""The bar of a prefill: tokens read, tokens a second, time left."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from transformers import PreTrainedModel

from winnow.cache.replay import Words, words_of
from winnow.commands.progress import progress_bar
from winnow.composition.method import Method
from winnow.evaluate.layer_steps import layers_watched
from winnow.score import Replayer


def tokens_read(method: Method, length: int, words: Words) -> int:
    """Tokens that a model is given for a prompt of `length` tokens, its replay included if the method has one."""
    replayer = method.scorer.replayer
    return length if replayer is None else read_twice(replayer, length, words)


def read_twice(replayer: Replayer, length: int, words: Words) -> int:
    """Tokens that a model is given for such a prompt and its replay."""
    return length + words_of(words, replayer).tokens_read(length, replayer.chunk)


@contextmanager
def reading(model: PreTrainedModel, tokens: int, text: str = "Reading") -> Iterator[None]:
    """A bar for what the model reads inside. tokens: those that it will be given; text: before the bar, plain."""
    with progress_bar(text, tokens, unit="tokens") as bar, layers_watched(model, bar.advance):
        yield
