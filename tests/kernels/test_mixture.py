"""Experts of a mixture by the compiled kernels in one call, in every instruction set, against float64."""

from __future__ import annotations

import ctypes
from typing import NamedTuple

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from support.dense_attention import DTYPES
from support.gates import GATES, gated
from support.instruction_sets import needs_native
from support.linear_layers import random_stack, reads
from winnow.kernels import native
from winnow.kernels.gate import SILU, Gate
from winnow.kernels.mixture import MixturePlan
from winnow.kernels.native_args import GateArgs, MixtureArgs
from winnow.kernels.stack import StackPlan

pytestmark = needs_native
SHARED = [HealthCheck.function_scoped_fixture]
EXPERTS = 5
BAD_GATE = 6
"""WINNOW_BAD_GATE"""


class Gating(NamedTuple):
    """The gate between the layers of an expert, and how its numbers lie."""

    by: Gate = SILU
    interleaved: bool = False


HALVES = Gating()


def mixture(
    width: int, inner: int, bits: int, dtype: torch.dtype, bias: bool, chosen: int, gating: Gating = HALVES
) -> MixturePlan:
    """Random experts, whose numbers fp16 holds."""

    def layers(outputs: int, inputs: int) -> StackPlan:
        weights = random_stack(EXPERTS, outputs, inputs, bits, dtype, bias)
        return StackPlan(weights._replace(scales=None if weights.scales is None else weights.scales / 64))

    return MixturePlan(layers(2 * inner, width), layers(width, inner), chosen, *gating)


def by_layers(plan: MixturePlan, gating: Gating, inputs: Tensor, experts: Tensor, weights: Tensor) -> Tensor:
    """Each token by each of its experts: layers as they give it, and what is between in float64, then rounded."""
    outputs = torch.zeros(len(inputs), plan.outputs, dtype=torch.float64)
    for token, (row, chosen) in enumerate(zip(inputs, experts, strict=True)):
        for expert, weight in zip(chosen, weights[token], strict=True):
            entered = plan.enter.run(row[None], expert[None])
            gates, ups = (entered[:, ::2], entered[:, 1::2]) if gating.interleaved else entered.chunk(2, dim=1)
            left = plan.leave.run(gated(gating.by, gates, ups), expert[None])
            outputs[token] += weight.double() * left[0].double()
    return outputs


def given_tokens(tokens: int, width: int, chosen: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens with experts that differ, and their weights."""
    scores = torch.rand(tokens, EXPERTS)
    return torch.randn(tokens, width).to(dtype) / width**0.5, scores.topk(chosen).indices, torch.rand(tokens, chosen)


@settings(max_examples=50, deadline=None, derandomize=True, suppress_health_check=SHARED)
@given(
    st.integers(0, 6) | st.just(40),
    st.integers(1, 3),
    st.integers(1, 150),
    st.integers(1, EXPERTS),
    st.sampled_from([16, 8, 6, 5, 4]),
    st.sampled_from(DTYPES),
    st.booleans(),
    st.integers(1, 3),
    st.builds(Gating, st.sampled_from(list(GATES.values())), st.booleans()),
)
def test_tokens_are_sums_of_what_their_experts_give(
    isas: list[str],
    tokens: int,
    groups: int,
    inner: int,
    chosen: int,
    bits: int,
    dtype: torch.dtype,
    bias: bool,
    threads: int,
    gating: Gating,
) -> None:
    torch.manual_seed(tokens + inner)
    whole = 32 if gating.interleaved else 64
    inner, width = (-(-inner // whole) * whole, 64 * groups) if bits < 8 else (inner, 32 * groups)
    plan, what = mixture(width, inner, bits, dtype, bias, chosen, gating), given_tokens(tokens, width, chosen, dtype)
    used, room = torch.get_num_threads(), {torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}[dtype]
    for isa in isas:
        native.select_isa(isa)
        if bits < 8 and not reads(dtype, bits):
            with pytest.raises(ValueError, match=f"{bits} and {bits} bits"):
                plan.run(*what)
            continue
        torch.set_num_threads(threads)
        found = plan.run(*what)
        torch.set_num_threads(used)
        assert found.dtype == dtype
        expected = by_layers(plan, gating, *what)
        atol = room * float(expected.abs().max()) if tokens else 0
        torch.testing.assert_close(found.double(), expected, rtol=0, atol=atol, msg=isa)


def test_a_token_is_the_same_beside_others_that_have_other_experts() -> None:
    plan = mixture(64, 32, 16, torch.bfloat16, True, 1)
    inputs, _, weights = given_tokens(EXPERTS, 64, 1, torch.bfloat16)
    experts = torch.arange(EXPERTS).flip(0)[:, None]
    together = plan.run(inputs, experts, weights)
    for token in range(EXPERTS):
        one = slice(token, token + 1)
        assert torch.equal(plan.run(inputs[one], experts[one], weights[one]), together[one])


@pytest.mark.parametrize("expert", [-1, EXPERTS])
def test_experts_that_there_are_not_are_refused(expert: int) -> None:
    plan = mixture(32, 8, 16, torch.float32, False, 2)
    with pytest.raises(IndexError, match="there are 5"):
        plan.run(torch.ones(1, 32), torch.tensor([[0, expert]]), torch.ones(1, 2))


@pytest.mark.parametrize(
    ("inputs", "experts", "weights"),
    [
        (torch.ones(2, 31), torch.zeros(2, 2, dtype=torch.int64), torch.ones(2, 2)),
        (torch.ones(2, 32).half(), torch.zeros(2, 2, dtype=torch.int64), torch.ones(2, 2)),
        (torch.ones(32), torch.zeros(1, 2, dtype=torch.int64), torch.ones(1, 2)),
        (torch.ones(2, 32), torch.zeros(2, 3, dtype=torch.int64), torch.ones(2, 3)),
        (torch.ones(2, 32), torch.zeros(2, 2, dtype=torch.int32), torch.ones(2, 2)),
        (torch.ones(2, 32), torch.zeros(2, 2, dtype=torch.int64), torch.ones(2, 2).half()),
        (torch.ones(2, 32, device="meta"), torch.zeros(2, 2, dtype=torch.int64), torch.ones(2, 2)),
    ],
    ids=["width", "dtype", "one dimension", "more experts", "experts of 32 bits", "weights of 16 bits", "device"],
)
def test_what_does_not_fit_is_refused(inputs: Tensor, experts: Tensor, weights: Tensor) -> None:
    with pytest.raises(ValueError, match="do not fit"):
        mixture(32, 8, 16, torch.float32, False, 2).run(inputs, experts, weights)


@pytest.mark.parametrize(
    ("enter", "leave"),
    [
        ((EXPERTS, 16, 32, 16), (EXPERTS, 32, 9, 16)),
        ((EXPERTS, 16, 32, 16), (EXPERTS, 33, 8, 16)),
        ((EXPERTS, 16, 32, 16), (EXPERTS - 1, 32, 8, 16)),
        *(((EXPERTS, 64, 64, bits), (EXPERTS, 64, 32, bits)) for bits in (4, 5, 6)),
    ],
    ids=["inner", "width", "fewer experts", *(f"halves that cut a block of {bits} bits" for bits in (4, 5, 6))],
)
def test_layers_that_do_not_fit_together_are_refused(enter: tuple[int, ...], leave: tuple[int, ...]) -> None:
    plans = [StackPlan(random_stack(*sizes, torch.bfloat16, False)) for sizes in (enter, leave)]
    with pytest.raises(ValueError, match="are not those that enter and leave experts"):
        MixturePlan(*plans, 2)


@pytest.mark.parametrize("activation", [-1, 3])
def test_activations_that_there_are_not_are_refused(activation: int) -> None:
    plan = mixture(32, 8, 16, torch.float32, False, 2)
    given = MixtureArgs(plan.enter.stack, plan.leave.stack, 2, GateArgs(activation, *SILU[1:]), False)
    assert native.loaded_library().winnow_mix(ctypes.byref(given), 0, None, None, None, None, 1) == BAD_GATE
