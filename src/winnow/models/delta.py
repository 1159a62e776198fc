"""Linear attention of models by the compiled kernel of the gated delta rule: which functions it serves, and how."""

from __future__ import annotations

from inspect import unwrap
from typing import Any

import torch
from torch import Tensor

from winnow.kernels import delta
from winnow.models.calls import Function
from winnow.models.recorded import is_followed
from winnow.models.trials import drawn, gives, is_packed, takes


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
        layout = None if is_packed(other) or is_followed(*given, state) else delta.layout_of(*given, state)
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


def _zeros(key: Tensor, value: Tensor) -> Tensor:
    """The state [R, Hv, Dk, Dv] before the first token."""
    rows, _, heads, width = value.shape
    return torch.zeros(rows, heads, key.shape[-1], width, dtype=torch.float32, device=value.device)


def delta_for(own: Function) -> DeltaByKernel | None:
    """A model's function by the kernel; None if it computes anything else."""
    wanted = ("query", "key", "value", "g", "beta")
    return DeltaByKernel(own) if takes(own, wanted) and _is_delta(unwrap(own)) else None


@torch.no_grad()
def _is_delta(own: Function) -> bool:
    """True if the kernel gives what a model's function gives, from no state and from one, with lengths and without."""
    generator = torch.Generator().manual_seed(0)
    for dtype, normalized in ((torch.float32, True), (torch.bfloat16, True), (torch.float32, False)):
        query, key = (drawn(generator, 2, 5, 2, 8).to(dtype) for _ in range(2))
        value, beta = drawn(generator, 2, 5, 4, 6).to(dtype), drawn(generator, 2, 5, 4).sigmoid().to(dtype)
        g, state = -drawn(generator, 2, 5, 4).exp(), drawn(generator, 2, 4, 8, 6)
        if not normalized:
            key = key / 8
        named = {"output_final_state": True, "use_qk_l2norm_in_kernel": normalized}
        for initial in (None, state):
            by_kernel = DeltaByKernel(own)
            given = None if initial is None else initial.clone()
            found = by_kernel(query, key, value, g, beta, initial_state=given, **named)
            if not gives(own, found, query, key, value, g=g, beta=beta, initial_state=initial, **named):
                return False
    return True
