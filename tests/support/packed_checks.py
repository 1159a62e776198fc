"""The reference and the compiled kernels against the oracle."""

from __future__ import annotations

import torch

from support.packed_attention import Problem
from support.packed_oracle import solved
from support.weight_rounding import assert_as_close
from winnow.kernels import native
from winnow.kernels.reference import ReferencePlan

# Relative and absolute: fp32 as computed; the others as rounded on output, with what integer products add to it.
TOLERANCE = {torch.float32: (1e-5, 1e-5), torch.bfloat16: (2**-8, 1e-4), torch.float16: (2**-10, 1e-4)}


def check(problem: Problem, isas: list[str], dtype: torch.dtype) -> None:
    """The reference and the kernels of every instruction set against the oracle."""
    expected, by_rounding = solved(problem)
    relative, absolute = TOLERANCE[dtype]

    out = ReferencePlan(problem.prefixes, problem.tail, problem.spec).run(problem.query)
    torch.testing.assert_close(out.double(), expected, rtol=relative, atol=absolute)
    for isa in isas:
        native.select_isa(isa)
        out = native.NativePlan(problem.prefixes, problem.tail, problem.spec).run(problem.query)
        assert_as_close(out, expected, TOLERANCE[dtype], lambda: by_rounding, isa)
