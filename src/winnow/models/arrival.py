"""Weights rounded as they are read from a checkpoint, so that it need not fit into memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Any

from torch import nn
from torch.nn.modules import module as modules
from transformers import PreTrainedModel

from winnow.models.roundable import STAYING, embeds_plainly, fewest_bits, holds_experts, may_be_rounded
from winnow.models.rounding import RoundedWeights, Rounding

_READ_AHEAD_OFF = "HF_DEACTIVATE_ASYNC_LOAD"
"""By this variable, transformers reads no weight before the one in front of it is in its module."""

_READ = "_is_hf_initialized"
"""An attribute that transformers gives to a parameter which holds what a checkpoint does."""


@contextmanager
def rounded_on_arrival(rounding: Rounding) -> Iterator[None]:
    """Within it, the weights that `quantize_weights` makes smaller give way to `RoundedWeights` one by one."""
    arrivals = _Arrivals(rounding)
    handles = [
        modules.register_module_module_registration_hook(arrivals.note),
        modules.register_module_parameter_registration_hook(arrivals.round),
    ]
    try:
        with _without_reading_ahead():
            yield
    finally:
        for handle in handles:
            handle.remove()


class _Arrivals:
    """Modules of a model that is being read, by this thread: torch tells of those of every thread."""

    def __init__(self, rounding: Rounding) -> None:
        self._rounding = rounding
        self._thread = get_ident()
        self._models: set[PreTrainedModel] = set()
        self._whole: list[PreTrainedModel] = []
        self._seen = 0
        self._staying: set[nn.Module] = set()
        self._in_eight: set[nn.Module] = set()

    def note(self, parent: nn.Module, name: str, child: nn.Module | None) -> None:
        """Called for a module that another one gets under a name."""
        if get_ident() != self._thread:
            return
        if isinstance(parent, PreTrainedModel):
            self._models.add(parent)
        if child is not None and name in STAYING:
            self._staying.add(child)
        if child is not None and fewest_bits(name) > 4:
            self._in_eight.add(child)

    def round(self, module: nn.Module, name: str, parameter: nn.Parameter) -> Any:
        """Called for a parameter that a module gets; returns `RoundedWeights` for its place, or None to leave it."""
        if get_ident() != self._thread or type(parameter) is not nn.Parameter or not hasattr(parameter, _READ):
            return None
        if self._embeds_alone(module):
            return RoundedWeights.instead_of(parameter, self._rounding.layer(parameter, at_least=8))
        if not may_be_rounded(module, name) or module in self._staying:
            return None
        if holds_experts(module):
            return RoundedWeights.instead_of(parameter, self._rounding.stack(parameter, module.is_transposed))
        output = self._is_output(module)
        if output and self._embeds(parameter):
            return None  # the embedding's own, which both get another for when the model is complete
        bits = 8 if output or module in self._in_eight else 4
        return RoundedWeights.instead_of(parameter, self._rounding.layer(parameter, at_least=bits))

    def _is_output(self, module: nn.Module) -> bool:
        return any(model.get_output_embeddings() is module for model in self._outermost())

    def _embeds_alone(self, module: nn.Module) -> bool:
        """True for an embedding that may be rounded, and whose weight is no other layer's."""
        return embeds_plainly(module) and any(
            model.get_input_embeddings() is module and not _ties(model) for model in self._outermost()
        )

    def _embeds(self, parameter: nn.Parameter) -> bool:
        return any(getattr(model.get_input_embeddings(), "weight", None) is parameter for model in self._outermost())

    def _outermost(self) -> list[PreTrainedModel]:
        """Models that are in no other one: the one that is read, without its text model and what sees its images."""
        if self._seen != len(self._models):
            inner = {each for model in self._models for each in model.modules() if each is not model}
            self._whole, self._seen = [model for model in self._models if model not in inner], len(self._models)
        return self._whole


def _ties(model: PreTrainedModel) -> bool:
    """True if the output layer may get the embedding's weight."""
    told = model.config, model.config.get_text_config(decoder=True)
    return any(getattr(each, "tie_word_embeddings", False) for each in told)


@contextmanager
def _without_reading_ahead() -> Iterator[None]:
    before = os.environ.get(_READ_AHEAD_OFF)
    os.environ[_READ_AHEAD_OFF] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_READ_AHEAD_OFF]
        else:
            os.environ[_READ_AHEAD_OFF] = before
