"""State scans of models with Mamba-2 by the compiled kernel: which functions it serves, and how."""

from __future__ import annotations

from inspect import unwrap
from math import inf
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from winnow.kernels import scan
from winnow.models.calls import Function
from winnow.models.recorded import is_followed
from winnow.models.trials import CLOSE, drawn, gives, is_packed, takes

_NO_LIMITS = -inf, inf


class ScanByKernel:
    """A model's function for the scan of a prompt, by the kernel where it reads what is given; else as the model's own.

    A state that is given is changed in place. The model's own function leaves it, and its layer copies the new one
    over it.
    """

    def __init__(self, own: Function) -> None:
        """own: one that computes the same."""
        self._own = own

    def __call__(
        self,
        hidden_states: Tensor,
        dt: Tensor,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        chunk_size: int,
        *,
        D: Tensor | None = None,
        dt_bias: Tensor | None = None,
        initial_states: Tensor | None = None,
        dt_softplus: bool = False,
        dt_limit: tuple[float, float] = (0.0, inf),
        return_final_states: bool = False,
        **other: Any,
    ) -> Any:
        """The same as the model's own: [R, N, H, P] in fp32; `other` is its own, too."""
        given = (hidden_states, dt, B, C)
        state = _zeros(hidden_states, B) if initial_states is None else initial_states
        layout = None
        if other.get("z") is None and not is_packed(other) and not _is_followed(*given, A, state, D, dt_bias):
            layout = scan.layout_of(*given, state)
        if layout is None:
            return self._own(
                *(hidden_states, dt, A, B, C, chunk_size),
                D=D,
                dt_bias=dt_bias,
                initial_states=initial_states,
                dt_softplus=dt_softplus,
                dt_limit=dt_limit,
                return_final_states=return_final_states,
                **other,
            )
        biases, through = _in_fp32(dt_bias), _in_fp32(D)
        limits, dtype = (float(dt_limit[0]), float(dt_limit[1])), torch.float32
        rates = A.float().contiguous()
        outputs = scan.scan(*given, rates, biases, through, state, limits, dt_softplus, dtype, layout)
        return (outputs, state) if return_final_states else outputs


class ScanStepByKernel:
    """A model's function for a token, by the kernel; else as the model's own."""

    def __init__(self, own: Function) -> None:
        """own: one that computes the same."""
        self._own = own

    def __call__(
        self,
        state: Tensor,
        hidden_states: Tensor,
        dt: Tensor,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        D: Tensor | None = None,
        dt_bias: Tensor | None = None,
        dt_softplus: bool = False,
        z: Tensor | None = None,
        **other: Any,
    ) -> Any:
        """The same as the model's own: [R, H, P] from a state [R, H, P, S], which it changes."""
        found = None
        if not _is_followed(state, hidden_states, dt, A, B, C, D, dt_bias):
            found = _scanned(state, hidden_states, dt, A, B, C, D, dt_bias, dt_softplus)
        if found is None:
            named = {"D": D, "dt_bias": dt_bias, "dt_softplus": dt_softplus, "z": z, **other}
            return self._own(state, hidden_states, dt, A, B, C, **named)
        return found if z is None else found * F.silu(z)


def _is_followed(*tensors: Tensor | None) -> bool:
    """True for tensors that a trace or gradients follow, or that are of another kind."""
    plain = [each.detach() if isinstance(each, torch.nn.Parameter) else each for each in tensors if each is not None]
    grown = torch.is_grad_enabled() and any(each is not None and each.requires_grad for each in tensors)
    return grown or is_followed(*plain)


def _scanned(
    state: Tensor,
    inputs: Tensor,
    dt: Tensor,
    rates: Tensor,
    enter: Tensor,
    leave: Tensor,
    through: Tensor | None,
    biases: Tensor | None,
    softplus: bool,
) -> Tensor | None:
    """The outputs [R, H, P] of the kernel for one token; None where channels of a head differ in more than inputs."""
    if any(each is not None and _varies(each, dims) for each, dims in ((dt, 2), (rates, 1), (through, 1), (biases, 1))):
        return None
    inputs, steps, enter, leave = (each.unsqueeze(1) for each in (inputs, dt[:, :, 0], enter, leave))
    layout = scan.layout_of(inputs, steps, enter, leave, state)
    if layout is None:
        return None
    of_heads = [_in_fp32(None if each is None else each[:, 0]) for each in (biases, through)]
    given, (of_biases, of_through) = (inputs, steps, enter, leave, rates[:, 0, 0].float().contiguous()), of_heads
    outputs = scan.scan(*given, of_biases, of_through, state, _NO_LIMITS, softplus, inputs.dtype, layout)
    return outputs.squeeze(1)


def _in_fp32(numbers: Tensor | None) -> Tensor | None:
    """Numbers [H] as the kernel reads them."""
    return None if numbers is None else numbers.float().contiguous()


def _varies(numbers: Tensor, dims: int) -> bool:
    """True for numbers that may not be the same in all dimensions but the first: no view shows one for all."""
    others = list(zip(numbers.shape, numbers.stride(), strict=True))[dims:]
    return any(size != 1 and stride for size, stride in others)


def _zeros(inputs: Tensor, enter: Tensor) -> Tensor:
    """The state [R, H, P, S] before the first token."""
    rows, _, heads, dim = inputs.shape
    return torch.zeros(rows, heads, dim, enter.shape[-1], dtype=torch.float32, device=inputs.device)


def scan_for(own: Function) -> ScanByKernel | None:
    """A model's function for prompts by the kernel; None if it computes anything else."""
    wanted = ("hidden_states", "dt", "A", "B", "C", "chunk_size")
    return ScanByKernel(own) if takes(own, wanted) and _is_scan(unwrap(own)) else None


def scan_step_for(own: Function) -> ScanStepByKernel | None:
    """A model's function for tokens by the kernel; None if it computes anything else."""
    wanted = ("state", "hidden_states", "dt", "A", "B", "C", "D", "dt_bias", "dt_softplus", "z")
    return ScanStepByKernel(own) if takes(own, wanted) and _is_step(unwrap(own)) else None


def _numbers(generator: torch.Generator, tokens: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Inputs [2, N, 4, 6], steps [2, N, 4], B and C [2, N, 2, 8]; rates, D and biases [4]."""
    inputs, steps = drawn(generator, 2, tokens, 4, 6).to(dtype), drawn(generator, 2, tokens, 4).to(dtype)
    enter, leave = (drawn(generator, 2, tokens, 2, 8).to(dtype) for _ in range(2))
    return inputs, steps, enter, leave, -drawn(generator, 4).exp(), *drawn(generator, 2, 4).to(dtype)


@torch.no_grad()
def _is_scan(own: Function) -> bool:
    """True if the kernel gives what a model's function gives, from no state and from one, within limits and without."""
    generator = torch.Generator().manual_seed(0)
    for dtype in CLOSE:
        inputs, steps, enter, leave, rates, through, biases = _numbers(generator, 5, dtype)
        given, state = (inputs, steps, rates, enter, leave, 4), drawn(generator, 2, 4, 6, 8)
        for initial, limits in ((None, (0.0, inf)), (state, (0.3, 1.0))):
            named: dict[str, Any] = {"D": through, "dt_bias": biases, "dt_softplus": True, "dt_limit": limits}
            own_state = None if initial is None else initial.clone()
            found = ScanByKernel(own)(*given, initial_states=own_state, return_final_states=True, **named)
            if not gives(own, found, *given, initial_states=initial, return_final_states=True, **named):
                return False
    return True


@torch.no_grad()
def _is_step(own: Function) -> bool:
    """The same for one token, with a gate and without, and for the state that it leaves."""
    generator = torch.Generator().manual_seed(0)
    for dtype in CLOSE:
        inputs, steps, enter, leave, rates, through, biases = _numbers(generator, 1, dtype)
        inputs, steps, enter, leave = (each.squeeze(1) for each in (inputs, steps, enter, leave))
        of_channels = [each[..., None].expand(*each.shape, 6) for each in (steps, through, biases)]
        given = (inputs, of_channels[0], rates[:, None, None].expand(4, 6, 8), enter, leave)
        for gate in (None, drawn(generator, 2, 4, 6).to(dtype)):
            state = drawn(generator, 2, 4, 6, 8)
            other = state.clone()
            named: dict[str, Any] = {"D": of_channels[1], "dt_bias": of_channels[2], "dt_softplus": True, "z": gate}
            found = ScanStepByKernel(own)(state, *given, **named)
            if not gives(_with_state(own), (found, state.to(dtype)), other, *given, **named):
                return False
    return True


def _with_state(own: Function) -> Function:
    """A model's function that also returns the state which it changed, as rounded as its other numbers."""

    def returning(state: Tensor, inputs: Tensor, *given: Any, **named: Any) -> tuple[Any, Tensor]:
        found = own(state, inputs, *given, **named)
        return found, state.to(inputs.dtype)

    return returning
