"""Linear attention of models by the compiled kernel of delta rules: which functions it serves, and how."""

from __future__ import annotations

from inspect import unwrap
from typing import Any

import torch
from torch import Tensor

from winnow.kernels import delta
from winnow.models.calls import Function
from winnow.models.recorded import is_followed
from winnow.models.trials import drawn, gives, is_packed, refuses, takes


class DeltaByKernel:
    """A model's function for a delta rule, by the kernel where it reads what is given; else as the model's own.

    A state that is given is changed in place. The model's own function leaves it, and its layer copies the new one
    over it.
    """

    def __init__(self, own: Function, per_channel: bool = False) -> None:
        """own: one that computes the same.

        per_channel: the rule is Kimi Delta Attention, whose decays are [R, N, H, Dk]; else they are [R, N, H].
        """
        self._own = own
        self._axes = 4 if per_channel else 3

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
        if g.dim() == self._axes and not is_packed(other) and not is_followed(*given, state):
            decays = g if g.dtype is torch.float32 else g.float()
            taken = _beside(query), _beside(key), _beside(value), decays, beta
            layout = delta.layout_of(*taken, state)
            if layout is not None:
                outputs = delta.recur(*taken, state, use_qk_l2norm_in_kernel, layout)
                return outputs, state if output_final_state else None
        return self._own(
            *given,
            initial_state=initial_state,
            output_final_state=output_final_state,
            use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel,
            **other,
        )


def _beside(tensor: Tensor) -> Tensor:
    """The tensor with its last axis' numbers beside each other, which those of torch's convolution are not."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _zeros(key: Tensor, value: Tensor) -> Tensor:
    """The state [R, Hv, Dk, Dv] before the first token."""
    rows, _, heads, width = value.shape
    return torch.zeros(rows, heads, key.shape[-1], width, dtype=torch.float32, device=value.device)


def delta_for(own: Function) -> DeltaByKernel | None:
    """A model's function for the gated delta rule by the kernel; None if it computes anything else."""
    return _by_kernel(own, per_channel=False)


def kimi_delta_for(own: Function) -> DeltaByKernel | None:
    """The same for Kimi Delta Attention."""
    return _by_kernel(own, per_channel=True)


def _by_kernel(own: Function, per_channel: bool) -> DeltaByKernel | None:
    wanted = ("query", "key", "value", "g", "beta")
    return DeltaByKernel(own, per_channel) if takes(own, wanted) and _is_delta(unwrap(own), per_channel) else None


@torch.no_grad()
def _is_delta(own: Function, per_channel: bool) -> bool:
    """True if the kernel gives what a model's function gives, from no state and from one, with lengths and without.

    Also where several values' heads have the same key, unless the function is not for such heads.
    """
    generator = torch.Generator().manual_seed(0)
    by_kernel = DeltaByKernel(own, per_channel)
    for dtype, normalized in ((torch.float32, True), (torch.bfloat16, True), (torch.float32, False)):
        for heads in (4, 2):
            given = _numbers(generator, heads, dtype, 1.0 if normalized else 0.1, per_channel)
            named: dict[str, Any] = {"output_final_state": True, "use_qk_l2norm_in_kernel": normalized}
            if heads == 2 and refuses(own, *given, initial_state=None, **named):
                continue
            for state in (None, drawn(generator, 2, 4, 8, 6)):
                found = by_kernel(*given, initial_state=None if state is None else state.clone(), **named)
                if not gives(own, found, *given, initial_state=state, **named):
                    return False
    return True


def _numbers(
    generator: torch.Generator, heads: int, dtype: torch.dtype, size: float, per_channel: bool
) -> tuple[Tensor, ...]:
    """Queries and keys [2, 5, H, 8], these of a size, values [2, 5, 4, 6], decays [2, 5, 4(, 8)] and rates [2, 5, 4].

    Decays are of the dtype, as some models have them.
    """
    query, key = (drawn(generator, 2, 5, heads, 8).to(dtype) for _ in range(2))
    value, rates = drawn(generator, 2, 5, 4, 6).to(dtype), drawn(generator, 2, 5, 4).sigmoid().to(dtype)
    decays = -drawn(generator, 2, 5, 4, *((8,) if per_channel else ())).exp().to(dtype)
    return query, size * key, value, decays, rates
