"""Short convolutions of models by the compiled kernel: which functions it serves, and how."""

from __future__ import annotations

from inspect import unwrap
from typing import Any

import torch
from torch import Tensor

from winnow.kernels import convolution
from winnow.models.calls import Function
from winnow.models.recorded import is_followed
from winnow.models.trials import CLOSE, drawn, gives, is_packed, takes

_ACTIVATIONS = {None: False, "silu": True, "swish": True}
"""Activations that may follow a convolution; True for SiLU."""


class ConvolutionByKernel:
    """A model's function for a short convolution of a prompt, by the kernel; else as the model's own."""

    def __init__(self, own: Function) -> None:
        """own: one that computes the same."""
        self._own = own

    def __call__(
        self, hidden_states: Tensor, weight: Tensor, bias: Tensor | None = None, activation: Any = None, **other: Any
    ) -> Any:
        """The same as the model's own: inputs [R, C, N] -> outputs; `other` is its own, too."""
        found = None if is_packed(other) else _convolved(hidden_states, None, weight, bias, activation)
        return self._own(hidden_states, weight, bias, activation=activation, **other) if found is None else found


class StepByKernel:
    """A model's function for a short convolution of a token, by the kernel; else as the model's own."""

    def __init__(self, own: Function) -> None:
        """own: one that computes the same."""
        self._own = own

    def __call__(
        self,
        hidden_states: Tensor,
        conv_state: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        activation: Any = None,
    ) -> Any:
        """The same as the model's own: inputs [R, C, N] after those in a state [R, C, K], which it changes."""
        found = _convolved(hidden_states, conv_state, weight, bias, activation)
        return self._own(hidden_states, conv_state, weight, bias, activation) if found is None else found


def _convolved(
    inputs: Tensor, state: Tensor | None, weight: Tensor, bias: Tensor | None, activation: Any
) -> Tensor | None:
    """The outputs of the kernel; None for what it does not read, and where something follows it."""
    if activation not in _ACTIVATIONS or is_followed(inputs, weight, *([] if state is None else [state])):
        return None
    if bias is not None and torch.is_grad_enabled() and bias.requires_grad:
        return None
    if inputs.dim() == 3 and inputs.stride(1) != 1:
        # After tokens of a chunk that a cache put before them: those of a channel are beside each other.
        inputs = inputs.mT.contiguous().mT
    layout = convolution.layout_of(inputs, weight, bias, state)
    if layout is None:
        return None
    return convolution.convolve(inputs, weight, bias, _ACTIVATIONS[activation], state, layout)


def convolution_for(own: Function) -> ConvolutionByKernel | None:
    """A model's function for prompts by the kernel; None if it computes anything else."""
    wanted = ("hidden_states", "weight", "bias", "activation")
    return ConvolutionByKernel(own) if takes(own, wanted) and _is_convolution(unwrap(own)) else None


def step_for(own: Function) -> StepByKernel | None:
    """A model's function for tokens by the kernel; None if it computes anything else."""
    wanted = ("hidden_states", "conv_state", "weight", "bias", "activation")
    return StepByKernel(own) if takes(own, wanted) and _is_step(unwrap(own)) else None


@torch.no_grad()
def _is_convolution(own: Function) -> bool:
    """True if the kernel gives what a model's function gives, with a bias and an activation and without."""
    generator = torch.Generator().manual_seed(0)
    for dtype in CLOSE:
        inputs, weight = drawn(generator, 2, 7, 9).mT.to(dtype), drawn(generator, 9, 4).to(dtype)
        for bias, activation in ((None, None), (drawn(generator, 9).to(dtype), "silu")):
            found = ConvolutionByKernel(own)(inputs, weight, bias, activation=activation)
            if not gives(own, found, inputs, weight, bias, activation=activation):
                return False
    return True


@torch.no_grad()
def _is_step(own: Function) -> bool:
    """The same for a token after others, and for the state that it leaves."""
    generator = torch.Generator().manual_seed(0)
    for dtype in CLOSE:
        inputs, weight = drawn(generator, 2, 1, 9).mT.to(dtype), drawn(generator, 9, 4).to(dtype)
        for bias, activation in ((None, None), (drawn(generator, 9).to(dtype), "silu")):
            state = drawn(generator, 2, 9, 4).to(dtype)
            states = [state.clone(), state.clone()]
            found = StepByKernel(own)(inputs, states[0], weight, bias, activation)
            if not gives(own, found, inputs, states[1], weight, bias, activation) or not torch.equal(*states):
                return False
    return True
