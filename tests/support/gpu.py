"""Triton's kernels for tests: on a GPU where there is one, else under the interpreter on the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from winnow.kernels import AttentionSpec, TailSegments
from winnow.kernels.formats.serialize import on_device

pytest.importorskip("triton")

from support.interpreter import patch_once
from winnow.kernels.gpu.plan import TritonPlan

patch_once()

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
TOLERANCE = {torch.float32: (1e-5, 1e-5), torch.bfloat16: (2**-7, 4e-3), torch.float16: (2**-9, 1e-3)}
"""Relative and absolute: weights and what they multiply are rounded to the model's dtype, as tensor cores take them."""


def solved_by_triton(problem: Any) -> Tensor:
    """The output of a problem of `support.dense_attention` or `support.packed_attention`, on the CPU."""
    query, prefixes, tail, spec = problem
    there = [None if prefix is None else on_device(prefix, DEVICE) for prefix in prefixes]
    moved = TailSegments(tail.keys.to(DEVICE), tail.values.to(DEVICE), tail.lengths)
    sinks = None if spec.sinks is None else spec.sinks.to(DEVICE)
    plan = TritonPlan(there, moved, AttentionSpec(spec.scaling, spec.softcap, sinks))
    return plan.run(query.to(DEVICE)).cpu()
