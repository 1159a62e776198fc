"""Decode attention for a layer, whichever kernels serve it: C++ on the CPU, Triton on a GPU, else plain torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from winnow.kernels import native
from winnow.kernels.formats import Block
from winnow.kernels.gpu import support as gpu
from winnow.kernels.reference import ReferencePlan
from winnow.kernels.segments import AttentionSpec, TailSegments

__all__ = ["AttentionPlan", "AttentionSpec", "DecodePlan", "TailSegments", "attend", "backend"]


class _Plan(Protocol):
    """Decode attention of one layer by some kernels; `DecodePlan` documents each method."""

    def run(self, query: Tensor) -> Tensor: ...
    def nbytes(self) -> int: ...


class AttentionPlan(_Plan, Protocol):
    """Decode attention of one layer, worked out once; `DecodePlan` documents each method."""

    @property
    def spec(self) -> AttentionSpec: ...
    @property
    def kernels(self) -> object: ...
    @property
    def replays(self) -> bool: ...


class DecodePlan:
    """Decode attention of one layer: everything that stays the same between steps, worked out once.

    Build a new plan when rows are permuted, a prefix changes or a tail buffer is reallocated. Between steps only
    the contents of the tail and `tail.lengths` (in place) change. The plan keeps its tensors alive and must not
    run in two threads at once.
    """

    def __init__(self, prefixes: Sequence[Block | None], tail: TailSegments, spec: AttentionSpec) -> None:
        """Raises ValueError when prefixes and tail do not fit together."""
        self.spec = spec
        """The model's way from products to weights that the plan was made for."""
        self.kernels = _plan(prefixes, tail, spec)
        """The plan of the kernels that serve the layer."""
        self.run = self.kernels.run
        """query [R, Hq, Q, D] -> output [R, Q, Hq, Dv] in the query's dtype, as documented at the two plans."""

    @property
    def replays(self) -> bool:
        """True if a graph can hold `run`: it reads the tail's lengths where the query is, and waits for nothing."""
        return not isinstance(self.kernels, ReferencePlan)

    def nbytes(self) -> int:
        """Bytes of the tensors that the plan holds beyond prefixes and tail."""
        return self.kernels.nbytes()


def _plan(prefixes: Sequence[Block | None], tail: TailSegments, spec: AttentionSpec) -> _Plan:
    """The plan of the kernels that serve a layer."""
    if native.supports(tail):
        return native.NativePlan(prefixes, tail, spec)
    if gpu.supports(tail):
        # Imported where it serves: Triton takes a second, and there may be none.
        from winnow.kernels.gpu.plan import TritonPlan

        return TritonPlan(prefixes, tail, spec)
    return ReferencePlan(prefixes, tail, spec)


def attend(query: Tensor, prefixes: Sequence[Block | None], tail: TailSegments, spec: AttentionSpec) -> Tensor:
    """One step of decode attention without keeping a plan.

    query [R, Hq, Q, D] (any strides) -> output [R, Q, Hq, Dv]. Query i of row r sees the row's whole prefix and
    the first max(0, tail.lengths[r] - (Q - 1 - i)) tail tokens; a query that sees nothing gives zeros.
    """
    return DecodePlan(prefixes, tail, spec).run(query)


def backend(device: torch.device | None = None) -> str:
    """The kernels that serve a device, or else the CPU, for reports.

    "native (avx512, 2 threads)" on the CPU, "triton 3.9.0" on a CUDA device, "torch reference" where there are none.
    """
    kind = "cpu" if device is None else device.type
    if kind == "cuda":
        return gpu.backend()
    if kind != "cpu" or native.library() is None:
        return "torch reference"
    threads = torch.get_num_threads()
    return f"native ({native.isa()}, {threads} thread{'' if threads == 1 else 's'})"
