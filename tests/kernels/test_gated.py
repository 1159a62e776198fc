"""Gated layers of few rows by the compiled kernels, in every instruction set, against float64."""

from __future__ import annotations

import ctypes
import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.dense_attention import DTYPES
from support.gates import GATES, activated, met
from support.instruction_sets import needs_native
from support.linear_layers import reads
from winnow.kernels import native
from winnow.kernels.gate import SILU, Gate
from winnow.kernels.gated import GatedPlan
from winnow.kernels.linear import LinearPlan, Weight
from winnow.kernels.native_args import NO_MEMORY, GateArgs, GatedLayers

pytestmark = needs_native
SHARED = [HealthCheck.function_scoped_fixture]
BAD_GATE = 6
"""WINNOW_BAD_GATE"""


def layer(outputs: int, inputs: int, bits: int, dtype: torch.dtype, bias: bool) -> LinearPlan:
    """A layer of random numbers whose products are a few units large."""
    added = torch.randn(outputs).to(dtype) if bias else None
    if bits == 16:
        return LinearPlan(Weight(torch.randn(outputs, inputs).div(inputs**0.5).mul(4).to(dtype), added))
    if bits == 8:
        numbers = torch.randint(-128, 128, (outputs, inputs), dtype=torch.int8)
        return LinearPlan(Weight(numbers, added, torch.rand(outputs).div(20 * inputs**0.5).to(dtype)))
    numbers = torch.randint(0, 256, (outputs, inputs * bits // 8), dtype=torch.uint8)
    sizes = (inputs // 16, outputs) if bits == 6 else (inputs // 32, outputs, 2)
    return LinearPlan(Weight(numbers, added, torch.rand(sizes).div(2 ** (bits - 3) * inputs**0.5).to(dtype)))


def assert_gated(gate: LinearPlan, up: LinearPlan, by: Gate, inputs: torch.Tensor) -> None:
    """Fails where outputs of two layers, gated in one call, are not those that the layers give by themselves.

    These are tested for themselves: left are activations, their rounding and that of products, and an offset, which
    may cancel.
    """
    found, dtype = GatedPlan(gate, up, by).run(inputs), inputs.dtype
    activations, ups = activated(by, gate.run(inputs)), up.run(inputs)
    expected = activations * met(by, ups)
    sizes = (1 + by.offset * activations.abs()) * (ups.double().abs() + abs(by.offset))
    bound = 1.1 * torch.finfo(dtype).eps * expected.abs() + 1e-6 * sizes + torch.finfo(dtype).tiny
    assert found.dtype == dtype
    assert bool(((found.double() - expected).abs() <= bound).all()), native.isa()


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=SHARED)
@given(
    st.integers(1, 4),
    st.integers(0, 63),
    st.integers(1, 6),
    st.integers(0, 9) | st.sampled_from([33, 65]),
    st.sampled_from([(16, 16), (8, 8), (4, 4), (5, 5), (6, 6), (4, 8), (5, 6), (16, 8)]),
    st.sampled_from(DTYPES),
    st.booleans(),
    st.sampled_from(list(GATES.values())),
    st.integers(0, 99),
)
def test_a_gate_is_that_of_both_layers(
    isas: list[str], blocks: int, rest: int, groups: int, rows: int, bits, dtype, bias: bool, by: Gate, seed: int
) -> None:
    torch.manual_seed(seed)
    if min(bits) < 8:
        rest = 0
    sizes = (64 * blocks - rest, 32 * groups)
    gate, up = (layer(*sizes, each, dtype, bias) for each in bits)
    inputs = torch.randn(rows, 32 * groups).to(dtype)
    for isa in isas:
        native.select_isa(isa)
        if min(bits) < 8 and not all(reads(dtype, each) for each in bits if each < 8):
            with pytest.raises(ValueError, match="bits"):
                GatedPlan(gate, up, by).run(inputs)
            continue
        assert_gated(gate, up, by, inputs)


@pytest.mark.parametrize("bits", [(16, 16), (8, 16), (4, 4)])
@pytest.mark.parametrize("outputs", [1088, 1100])
def test_many_rows_of_so_many_outputs_that_a_thread_does_several_blocks_at_a_time(
    isas: list[str], outputs: int, bits: tuple[int, int]
) -> None:
    if min(bits) < 8 and outputs % 64:
        outputs = 1152
    torch.manual_seed(0)
    gate, up = (layer(outputs, 96, each, torch.bfloat16, bias=True) for each in bits)
    for isa in isas:
        native.select_isa(isa)
        if min(bits) >= 8 or all(reads(torch.bfloat16, each) for each in bits):
            assert_gated(gate, up, Gate(), torch.randn(40, 96).bfloat16())


def of_numbers(by: Gate, gate: float, up: float = 1.0) -> torch.Tensor:
    """The number [1, 1] that a gate makes of two of float32."""
    plans = [LinearPlan(Weight(torch.zeros(1, 1), torch.tensor([each]))) for each in (gate, up)]
    return GatedPlan(*plans, by).run(torch.ones(1, 1))


@pytest.mark.parametrize("number", [-3e38, -1e4, -200.0, -88.0, -87.0, -20.0, -9.9, -5.0, -0.0, 0.0, 1e-30, 0.9, 20.0])
@pytest.mark.parametrize("by", GATES.values(), ids=GATES)
def test_gates_of_any_size(by: Gate, number: float, isas: list[str]) -> None:
    for isa in isas:
        native.select_isa(isa)
        for gate in (number, -number):
            expected = activated(by, torch.tensor([[gate]])) * met(by, torch.ones(1))
            torch.testing.assert_close(
                of_numbers(by, gate).double(), expected, rtol=1e-6, atol=1e-12 * min(1, abs(gate))
            )


@pytest.mark.parametrize("by", [Gate(), Gate("gelu tanh"), Gate("gelu")], ids=["silu", "gelu tanh", "gelu"])
def test_activations_are_near_for_every_number_of_16_bits(by: Gate, isas: list[str]) -> None:
    every = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16)
    numbers = torch.cat([every.view(dtype).float() for dtype in (torch.bfloat16, torch.float16)])
    numbers = numbers[numbers.isfinite()]
    gate, up = (LinearPlan(Weight(torch.zeros(len(numbers), 1), bias)) for bias in (numbers, torch.ones(len(numbers))))
    expected = activated(by, numbers)
    for isa in isas:
        native.select_isa(isa)
        found = GatedPlan(gate, up, by).run(torch.ones(1, 1))[0].double()
        # Where exp would overflow, next to nothing is left.
        assert bool(((found - expected).abs() <= 2.1e-7 * numbers.double().abs().clamp(max=1e3) + 1e-30).all()), isa


@pytest.mark.parametrize("by", GATES.values(), ids=GATES)
def test_outputs_without_a_size(by: Gate) -> None:
    assert of_numbers(by, math.nan).isnan()
    assert of_numbers(by, 1.0, math.nan).isnan()
    assert abs(float(of_numbers(by, -math.inf))) < 1e-27
    assert float(of_numbers(by, math.inf)) == pytest.approx(
        float(activated(by, torch.tensor(math.inf)) * met(by, torch.ones(1)))
    )
    # A limit is for both.
    assert float(of_numbers(by, 1.0, -math.inf)) == pytest.approx(
        float(activated(by, torch.ones(1)) * met(by, torch.tensor(-math.inf)))
    )


@pytest.mark.parametrize("by", GATES.values(), ids=GATES)
def test_the_definition_in_torch_is_that_of_the_kernels(by: Gate) -> None:
    gates, ups = torch.randn(2, 300, dtype=torch.float64) * 10
    torch.testing.assert_close(by.gated(gates, ups), activated(by, gates) * met(by, ups), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(
    "settings", [{"alpha": 0.0}, {"alpha": -1.0}, {"alpha": math.inf}, {"limit": -1.0}, {"limit": math.nan}]
)
def test_gates_that_there_are_not_are_refused(settings: dict[str, float]) -> None:
    one = LinearPlan(Weight(torch.ones(1, 1)))
    with pytest.raises(ValueError, match="there is no gate"):
        GatedPlan(one, one, SILU._replace(**settings))
    refused(GateArgs(0, *SILU._replace(**settings)[1:]))


@pytest.mark.parametrize("activation", [-1, 3, 2**31 - 1])
def test_activations_that_there_are_not_are_refused(activation: int) -> None:
    refused(GateArgs(activation, *SILU[1:]))


def refused(by: GateArgs) -> None:
    """Checks that the library does not compute with such a gate."""
    layer = LinearPlan(Weight(torch.ones(1, 1))).layer
    run = native.loaded_library().winnow_gated
    assert run(ctypes.byref(GatedLayers(layer, layer, by)), 0, None, None, 1) == BAD_GATE


def test_what_is_not_a_number_stays_where_it_is() -> None:
    gate, up = (layer(70, 32, 16, torch.float32, bias=False) for _ in range(2))
    inputs = torch.randn(3, 32)
    inputs[1, 4] = torch.nan
    found = GatedPlan(gate, up).run(inputs)
    assert bool(found[1].isnan().all())
    assert bool(found[[0, 2]].isfinite().all())


@pytest.mark.parametrize("rows", [3, 600])
@pytest.mark.parametrize("bits", [(16, 16), (8, 8), (16, 8)])
def test_neither_the_number_of_threads_nor_neighbors_change_anything(bits: tuple[int, int], rows: int) -> None:
    # Of so many rows, not all meet a weight at a time.
    gate, up = (layer(2000 if rows < 33 else 200, 640, each, torch.bfloat16, bias=True) for each in bits)
    plan, inputs, used = GatedPlan(gate, up), torch.randn(rows, 640).bfloat16(), torch.get_num_threads()
    found = []
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        found.append(plan.run(inputs))
    torch.set_num_threads(used)
    if rows > 3:
        found.append(torch.cat([plan.run(part) for part in inputs.split(rows // 3)]))
    assert all(torch.equal(found[0], other) for other in found[1:])


def test_a_want_of_memory_is_told_as_one(monkeypatch) -> None:
    gate, up = (layer(64, 32, 16, torch.float32, bias=False) for _ in range(2))
    plan = GatedPlan(gate, up)
    monkeypatch.setattr(plan, "_run", lambda *_: NO_MEMORY)
    with pytest.raises(MemoryError, match="3 rows"):
        plan.run(torch.randn(3, 32))


def test_layers_that_do_not_fit_each_other_are_refused() -> None:
    gate = layer(64, 32, 16, torch.float32, bias=False)
    for other in (
        layer(64, 64, 16, torch.float32, bias=False),
        layer(65, 32, 16, torch.float32, bias=False),
        layer(64, 32, 16, torch.bfloat16, bias=False),
    ):
        with pytest.raises(ValueError, match="does not fit"):
            GatedPlan(gate, other)
