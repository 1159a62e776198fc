"""Calls that are made again together: in their order, and up to the first that fails."""

from __future__ import annotations

import ctypes

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from support.instruction_sets import needs_native
from winnow.kernels import native
from winnow.kernels.linear import LinearPlan, Weight
from winnow.kernels.native_args import REPEATED, CallArgs, NormArgs
from winnow.kernels.norm import NormPlan, NormWeight
from winnow.kernels.recording import LibraryCall
from winnow.kernels.repeated import RepeatedCalls
from winnow.kernels.row_plan import RowFunction
from winnow.kernels.stack import StackPlan

pytestmark = needs_native
WIDTH = 32
BAD_CALL = 7
"""WINNOW_BAD_CALL"""


def call_of(plan: RowFunction, function: str, *memory: Tensor) -> LibraryCall:
    """A call for rows [R, W], the last of what it takes."""
    rows, places = len(memory[-1]), tuple(each.data_ptr() for each in memory)
    return LibraryCall(function, plan._arguments, lambda status: plan.error_of(rows, status), rows, places)


@given(st.lists(st.booleans(), min_size=1, max_size=9), st.integers(1, 40), st.integers(1, 3))
def test_each_takes_what_those_before_it_gave(norms: list[bool], rows: int, threads: int) -> None:
    torch.manual_seed(rows)
    norm = NormPlan(NormWeight(torch.randn(WIDTH), 1e-6))
    layer = LinearPlan(Weight(torch.randn(WIDTH, WIDTH) / WIDTH**0.5))
    between = [torch.randn(rows, WIDTH), *(torch.zeros(rows, WIDTH) for _ in norms)]
    calls = []
    for number, is_norm in enumerate(norms):
        plan, function = (norm, "winnow_normalize") if is_norm else (layer, "winnow_linear")
        calls.append(call_of(plan, function, between[number], between[number + 1]))
    repeated = RepeatedCalls(calls, ctypes.c_int32(threads))
    for _ in range(2):
        between[0].copy_(torch.randn(rows, WIDTH))
        repeated()
        expected = between[0]
        for is_norm in norms:
            expected = (norm if is_norm else layer).run(expected)
        assert torch.equal(between[-1], expected)


def test_the_first_that_fails_is_told_and_nothing_is_done_after_it() -> None:
    stack = StackPlan(Weight(torch.randn(2, WIDTH, WIDTH)))
    norm = NormPlan(NormWeight(torch.ones(WIDTH), 1e-6))
    inputs, layers = torch.randn(3, WIDTH), torch.tensor([0, 5, 1])
    before, found, after = (torch.zeros(3, WIDTH) for _ in range(3))
    repeated = RepeatedCalls(
        [
            call_of(norm, "winnow_normalize", inputs, before),
            call_of(stack, "winnow_linear_of_stack", layers, before, found),
            call_of(norm, "winnow_normalize", inputs, after),
        ],
        ctypes.c_int32(1),
    )
    with pytest.raises(IndexError, match="a layer that there is not"):
        repeated()
    assert torch.equal(before, norm.run(inputs))
    assert not after.any()
    layers[1] = 1
    repeated()
    assert torch.equal(found, stack.run(before, layers))
    assert torch.equal(after, before)


@pytest.mark.parametrize("function", [-1, len(REPEATED), 99])
def test_a_function_that_there_is_not_is_refused(function: int) -> None:
    done = ctypes.c_int64(-1)
    call = CallArgs(function, 0, ctypes.addressof(NormArgs()))
    assert native.loaded_library().winnow_repeat(ctypes.byref(call), 1, 1, ctypes.byref(done)) == BAD_CALL
    assert done.value == 0
