"""Queries that attend to one token make no subnormal numbers of the others' weights, nor do channels of states that
decay fast: each takes a processor a hundred cycles. It notes them itself, in flags that stay up until they are
cleared."""

from __future__ import annotations

import ctypes
import platform
import sys

import pytest
import torch
from torch import Tensor

from support.dense_attention import Case
from support.dense_attention import build as build_dense
from support.packed_attention import KEYS, VALUES, Layer, build
from winnow.kernels import delta, native

UNDERFLOW = 0x10
"""FE_UNDERFLOW of x86."""

pytestmark = [
    pytest.mark.skipif(
        platform.machine() not in ("x86_64", "AMD64") or not sys.platform.startswith("linux"),
        reason="flags of another processor",
    ),
    pytest.mark.usefixtures("isa", "threads"),
]


@pytest.fixture
def flags() -> ctypes.CDLL:
    """The flags of this thread, which does all the work."""
    torch.set_num_threads(1)
    return ctypes.CDLL("libm.so.6")


def underflows(plan: native.NativePlan, query: Tensor, flags: ctypes.CDLL) -> bool:
    """True if a number of a step was too small for all its digits."""
    plan.run(query)
    flags.feclearexcept(UNDERFLOW)
    plan.run(query)
    return bool(flags.fetestexcept(UNDERFLOW))


def test_the_flag_tells(flags: ctypes.CDLL) -> None:
    flags.feclearexcept(UNDERFLOW)
    tiny = torch.full((1,), 1.3e-38)
    assert not flags.fetestexcept(UNDERFLOW)
    tiny.mul_(0.3)
    assert flags.fetestexcept(UNDERFLOW)


@pytest.mark.parametrize("group", [1, 4, 8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_dense_slots(dtype: torch.dtype, group: int, flags: ctypes.CDLL) -> None:
    problem = build_dense(Case(group, 1, 64, 64, [[700, 64]], 4, [3]), dtype)
    plan = native.NativePlan(problem.prefixes, problem.tail, problem.spec)
    assert not underflows(plan, 60 * problem.query, flags)


@pytest.mark.parametrize("group", [1, 4, 8])
@pytest.mark.parametrize("name", ["8", "4", "kivi 4", "4 by 32"])
def test_packed_slots(name: str, group: int, flags: ctypes.CDLL) -> None:
    layer = Layer([[(KEYS[name], VALUES[name])]], [[[700, 64]]], [0], 64, 64, group)
    problem = build(layer, torch.bfloat16)
    plan = native.NativePlan(problem.prefixes, problem.tail, problem.spec)
    assert not underflows(plan, 60 * problem.query, flags)


@pytest.mark.parametrize("tokens", [1, 6])
def test_channels_that_decay_fast(tokens: int, flags: ctypes.CDLL) -> None:
    torch.manual_seed(0)
    queries, keys, values = torch.randn(3, 1, tokens, 2, 64)
    decays, rates = -60 * torch.rand(1, tokens, 2, 64), torch.rand(1, tokens, 2)
    given = queries, keys, values, decays, rates, torch.randn(1, 2, 64, 64)
    layout = delta.layout_of(*given)
    assert layout is not None
    flags.feclearexcept(UNDERFLOW)
    delta.recur(*given, True, layout)
    assert not flags.fetestexcept(UNDERFLOW)
