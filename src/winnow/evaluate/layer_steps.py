"""Layers of a model as steps of a prefill, told to whoever shows how far it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from transformers import PreTrainedModel


@contextmanager
def layers_watched(model: PreTrainedModel, read: Callable[[float], object]) -> Iterator[None]:
    """Inside, `read` is told after every decoder layer how many tokens were read: its share of those that came through.

    Over all layers the shares of a forward pass sum to its tokens, so chunks count as what they are. Nothing is told of
    models whose layers are not found.
    """
    layers = decoder_layers(model)

    def passed(layer: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any], output: object) -> None:
        hidden = arguments[0] if arguments else named["hidden_states"]
        read(hidden.shape[-2] / len(layers))

    hooks = [layer.register_forward_hook(passed, with_kwargs=True) for layer in layers]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def decoder_layers(model: PreTrainedModel) -> list[nn.Module]:
    """The layers of the text decoder, in order: its first list of as many modules as the configuration has layers."""
    count = model.config.get_text_config(decoder=True).num_hidden_layers
    lists = (module for module in model.get_decoder().modules() if isinstance(module, nn.ModuleList))
    return next((list(each) for each in lists if len(each) == count), [])
