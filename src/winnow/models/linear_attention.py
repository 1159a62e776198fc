"""Linear attention and short convolutions of models by the compiled kernels: which layers get them, and how."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature, unwrap
from typing import Any

import torch
from torch import Tensor, nn

from winnow.kernels import convolution, delta
from winnow.models.calls import Function, Successors, replace_calls
from winnow.models.recorded import is_followed

_ACTIVATIONS = {None: False, "silu": True, "swish": True}
"""What may follow a convolution; True for SiLU."""
_PACKED = ("cu_seqlens", "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "seq_idx")
"""Arguments of training on several texts in one row, which the kernels do not tell apart."""
_CLOSE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
"""Differences from a model's own function, at most, as a share of the largest number."""


def recur_in_one_pass(model: nn.Module) -> None:
    """Has a model's linear attention by the gated delta rule, and its short convolutions, be done by kernels, in place.

    torch takes forty operators for a token of a layer, and for a prompt products of small matrices and systems of
    equations. Functions that compute anything else are left: each is tried before. See `replace_calls`.
    """
    replace_calls(model, successors)


def successors() -> Successors:
    """The kernels for a model's own functions."""
    return Successors(tuple(_BY_NAME), lambda name, own: _BY_NAME[name](own))


class DeltaByKernel:
    """A model's function for the gated delta rule, by the kernel where it reads what is given; else as the model's own.

    A state that is given is changed in place. The model's own function leaves it, and its layer copies the new one
    over it.
    """

    def __init__(self, own: Function) -> None:
        """own: one that computes the same."""
        self._own = own

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        g: Tensor,
        beta: Tensor,
        *,
        initial_state: Tensor | None = None,
        output_final_state: bool = False,
        use_qk_l2norm_in_kernel: bool = False,
        **other: Any,
    ) -> Any:
        """The same as the model's own; `other` is its own, too."""
        given = (query, key, value, g, beta)
        state = _zeros(key, value) if initial_state is None else initial_state
        packed = any(other.get(name) is not None for name in _PACKED)
        layout = None if packed or is_followed(*given, state) else delta.layout_of(*given, state)
        if layout is None:
            return self._own(
                *given,
                initial_state=initial_state,
                output_final_state=output_final_state,
                use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel,
                **other,
            )
        outputs = delta.recur(*given, state, use_qk_l2norm_in_kernel, layout)
        return outputs, state if output_final_state else None


class ConvolutionByKernel:
    """A model's function for a short convolution of a prompt, by the kernel; else as the model's own."""

    def __init__(self, own: Function) -> None:
        """own: one that computes the same."""
        self._own = own

    def __call__(
        self, hidden_states: Tensor, weight: Tensor, bias: Tensor | None = None, activation: Any = None, **other: Any
    ) -> Any:
        """The same as the model's own: inputs [R, C, N] -> outputs; `other` is its own, too."""
        packed = any(other.get(name) is not None for name in _PACKED)
        found = None if packed else _convolved(hidden_states, None, weight, bias, activation)
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


def _zeros(key: Tensor, value: Tensor) -> Tensor:
    """The state [R, Hv, Dk, Dv] before the first token."""
    rows, _, heads, width = value.shape
    return torch.zeros(rows, heads, key.shape[-1], width, dtype=torch.float32, device=value.device)


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


def _delta_for(own: Function) -> DeltaByKernel | None:
    """A model's function by the kernel; None if it computes anything else."""
    wanted = ("query", "key", "value", "g", "beta")
    return DeltaByKernel(own) if _takes(own, wanted) and _is_delta(unwrap(own)) else None


def _convolution_for(own: Function) -> ConvolutionByKernel | None:
    wanted = ("hidden_states", "weight", "bias", "activation")
    return ConvolutionByKernel(own) if _takes(own, wanted) and _is_convolution(unwrap(own)) else None


def _step_for(own: Function) -> StepByKernel | None:
    wanted = ("hidden_states", "conv_state", "weight", "bias", "activation")
    return StepByKernel(own) if _takes(own, wanted) and _is_step(unwrap(own)) else None


_BY_NAME: dict[str, Callable[[Function], Function | None]] = {
    "torch_chunk_gated_delta_rule": _delta_for,
    "torch_recurrent_gated_delta_rule": _delta_for,
    "causal_conv1d_fn": _convolution_for,
    "causal_conv1d_update": _step_for,
}
"""Names that transformers' models give to the functions, in the module of each, and who tries them."""


def _takes(own: Function, names: tuple[str, ...]) -> bool:
    return tuple(signature(own).parameters)[: len(names)] == names


@torch.no_grad()
def _is_delta(own: Function) -> bool:
    """True if the kernel gives what a model's function gives, from no state and from one, with lengths and without."""
    generator = torch.Generator().manual_seed(0)
    for dtype, normalized in ((torch.float32, True), (torch.bfloat16, True), (torch.float32, False)):
        query, key = (_drawn(generator, 2, 5, 2, 8).to(dtype) for _ in range(2))
        value, beta = _drawn(generator, 2, 5, 4, 6).to(dtype), _drawn(generator, 2, 5, 4).sigmoid().to(dtype)
        g, state = -_drawn(generator, 2, 5, 4).exp(), _drawn(generator, 2, 4, 8, 6)
        if not normalized:
            key = key / 8
        named = {"output_final_state": True, "use_qk_l2norm_in_kernel": normalized}
        for initial in (None, state):
            by_kernel = DeltaByKernel(own)
            given = None if initial is None else initial.clone()
            found = by_kernel(query, key, value, g, beta, initial_state=given, **named)
            if not _alike(own, found, query, key, value, g=g, beta=beta, initial_state=initial, **named):
                return False
    return True


@torch.no_grad()
def _is_convolution(own: Function) -> bool:
    """True if the kernel gives what a model's function gives, with a bias and an activation and without."""
    generator = torch.Generator().manual_seed(0)
    for dtype in _CLOSE:
        inputs, weight = _drawn(generator, 2, 7, 9).mT.to(dtype), _drawn(generator, 9, 4).to(dtype)
        for bias, activation in ((None, None), (_drawn(generator, 9).to(dtype), "silu")):
            found = ConvolutionByKernel(own)(inputs, weight, bias, activation=activation)
            if not _alike(own, found, inputs, weight, bias, activation=activation):
                return False
    return True


@torch.no_grad()
def _is_step(own: Function) -> bool:
    """The same for a token after others, and for the state that it leaves."""
    generator = torch.Generator().manual_seed(0)
    for dtype in _CLOSE:
        inputs, weight = _drawn(generator, 2, 1, 9).mT.to(dtype), _drawn(generator, 9, 4).to(dtype)
        for bias, activation in ((None, None), (_drawn(generator, 9).to(dtype), "silu")):
            state = _drawn(generator, 2, 9, 4).to(dtype)
            states = [state.clone(), state.clone()]
            found = StepByKernel(own)(inputs, states[0], weight, bias, activation)
            if not _alike(own, found, inputs, states[1], weight, bias, activation) or not torch.equal(*states):
                return False
    return True


def _alike(own: Function, found: Any, *given: Any, **named: Any) -> bool:
    """True if a model's function gives tensors that are found, but for rounding; False also where it takes others."""
    try:
        expected = own(*given, **named)
    except (TypeError, ValueError, IndexError, RuntimeError):
        return False
    pairs = list(zip(_tensors(found), _tensors(expected), strict=False))
    return len(_tensors(found)) == len(_tensors(expected)) and all(_close(*pair) for pair in pairs)


def _tensors(found: Any) -> list[Tensor]:
    return [found] if isinstance(found, Tensor) else [each for each in found if isinstance(each, Tensor)]


def _close(found: Tensor, expected: Tensor) -> bool:
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return False
    tolerance = _CLOSE[found.dtype] * float(expected.abs().max())
    return torch.allclose(found, expected, rtol=0, atol=tolerance)


def _drawn(generator: torch.Generator, *sizes: int) -> Tensor:
    return torch.randn(*sizes, generator=generator, dtype=torch.float32, device="cpu")
