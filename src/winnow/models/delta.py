"""Linear attention of models by the compiled kernel of the gated delta rule: which functions it serves, and how."""

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
    """True if the kernel gives what a model's function gives, from no state and from one, with lengths and without.

    Also where several values' heads have the same key, unless the function is not for such heads.
    """
    generator = torch.Generator().manual_seed(0)
    for dtype, normalized in ((torch.float32, True), (torch.bfloat16, True), (torch.float32, False)):
        for heads in (4, 2):
            given = _numbers(generator, heads, dtype, 1.0 if normalized else 0.1)
            if heads == 2 and refuses(own, *given):
                continue
            for state in (None, drawn(generator, 2, 4, 8, 6)):
                if not _gives(own, given, state, normalized):
                    return False
    return True


def _numbers(generator: torch.Generator, heads: int, dtype: torch.dtype, size: float) -> tuple[Tensor, ...]:
    """Queries and keys [2, 5, H, 8], these of a size, values [2, 5, 4, 6], decays and rates [2, 5, 4]."""
    query, key = (drawn(generator, 2, 5, heads, 8).to(dtype) for _ in range(2))
    value, rates = drawn(generator, 2, 5, 4, 6).to(dtype), drawn(generator, 2, 5, 4).sigmoid().to(dtype)
    return query, size * key, value, -drawn(generator, 2, 5, 4).exp(), rates


def _gives(own: Function, given: tuple[Tensor, ...], state: Tensor | None, normalized: bool) -> bool:
    named: dict[str, Any] = {"output_final_state": True, "use_qk_l2norm_in_kernel": normalized}
    changed = None if state is None else state.clone()
    found = DeltaByKernel(own)(*given, initial_state=changed, **named)
    return gives(own, found, *given, initial_state=state, **named)
