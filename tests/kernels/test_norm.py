"""Norms by the compiled kernels, in every instruction set, against float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from support.dense_attention import DTYPES
from support.instruction_sets import needs_native
from winnow.kernels import native
from winnow.kernels.norm import GatedNormPlan, NormForm, NormPlan, NormWeight

pytestmark = needs_native
SHARED = [HealthCheck.function_scoped_fixture]
FORMS = [NormForm(), NormForm(rounds_first=False), NormForm(rounds_first=False, offset=1.0)]
SHAPES = st.lists(st.integers(0, 5), max_size=2).map(tuple)


def normalized(weight: NormWeight, inputs: Tensor) -> Tensor:
    """(w + offset) · x / √(mean(x²) + ε) in fp64, without a rounding."""
    numbers = inputs.double()
    root = (numbers.square().mean(-1, keepdim=True) + weight.epsilon).sqrt()
    return (weight.numbers.double() + weight.form.offset) * numbers / root


def assert_normalized(weight: NormWeight, inputs: Tensor) -> None:
    """Outputs are those of float64, rounded after they meet the weight, and before where the form says so."""
    found = NormPlan(weight).run(inputs)
    assert (found.shape, found.dtype) == (inputs.shape, inputs.dtype)
    assert found.is_contiguous()
    exact = normalized(weight, inputs)
    # Numbers in bfloat16 below 2⁻¹²⁶ may be taken for zero; those in float16 have fewer bits below 2⁻¹⁴.
    least = 1e-7 if inputs.dtype == torch.float16 else 1e-30
    larger = NormWeight(1 + weight.numbers.double().abs(), weight.epsilon)
    roundings = 2 if weight.form.rounds_first or inputs.dtype == torch.float32 else 0.51
    allowed = roundings * torch.finfo(inputs.dtype).eps * exact.abs() + least * larger.numbers
    # In fp32 a weight is added up and multiplied, at its size before what cancels.
    allowed += 4 * torch.finfo(torch.float32).eps * normalized(larger, inputs).abs()
    assert bool(((found.double() - exact).abs() <= allowed).all()), native.isa()


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=SHARED)
@given(
    SHAPES,
    st.integers(1, 200) | st.sampled_from([896, 1000, 4096]),
    st.sampled_from(DTYPES),
    st.sampled_from([1e-6, 1e-5, 0.1]),
    st.sampled_from([1e-4, 1.0, 100.0]),
    st.sampled_from(FORMS),
    st.integers(0, 99),
)
def test_rows_of_any_shape(
    isas: list[str],
    shape: tuple[int, ...],
    width: int,
    dtype: torch.dtype,
    epsilon: float,
    size: float,
    form: NormForm,
    seed: int,
) -> None:
    torch.manual_seed(seed)
    weight = NormWeight(torch.randn(width).to(dtype), epsilon, form)
    given = (size * torch.randn(*shape, width)).to(dtype)
    for isa in isas:
        native.select_isa(isa)
        assert_normalized(weight, given)


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=SHARED)
@given(
    st.integers(0, 40),
    st.integers(1, 200) | st.sampled_from([896, 4096]),
    st.sampled_from(DTYPES),
    st.sampled_from([1e-4, 1.0, 100.0]),
    st.sampled_from(FORMS),
    st.booleans(),
    st.integers(0, 99),
)
def test_sums_are_those_of_torch_and_normalized_as_others(
    isas: list[str], rows: int, width: int, dtype: torch.dtype, size: float, form: NormForm, in_place: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    plan = NormPlan(NormWeight(torch.randn(width).to(dtype), 1e-6, form))
    one, other = ((size * torch.randn(rows, width)).to(dtype) for _ in range(2))
    expected = one + other
    for isa in isas:
        native.select_isa(isa)
        given = one.clone()
        sums, found = given if in_place else torch.empty_like(one), torch.empty_like(one)
        places = [each.data_ptr() for each in (given, other, sums, found)]
        assert native.loaded_library().winnow_normalize_sums(plan._reference, rows, *places, 2) == 0
        assert torch.equal(sums, expected)
        assert torch.equal(found, plan.run(expected))


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=SHARED)
@given(
    SHAPES,
    st.integers(1, 200) | st.sampled_from([896, 4096]),
    st.sampled_from(DTYPES),
    st.sampled_from([1e-4, 1.0, 100.0]),
    st.sampled_from(FORMS),
    st.integers(0, 99),
)
def test_gated_rows_are_normalized_and_gated(
    isas: list[str], shape: tuple[int, ...], width: int, dtype: torch.dtype, size: float, form: NormForm, seed: int
) -> None:
    """The norm's numbers are those of rows without gates, to the bit, before they meet these and are rounded again."""
    torch.manual_seed(seed)
    weight = NormWeight(torch.randn(width).to(dtype), 1e-6, form)
    inputs, gates = ((each * torch.randn(*shape, width)).to(dtype) for each in (size, 4.0))
    for isa in isas:
        native.select_isa(isa)
        normal, found = NormPlan(weight).run(inputs).double(), GatedNormPlan(weight).run(inputs, gates)
        expected = normal * torch.nn.functional.silu(gates.double())
        allowed = (2**-20 if dtype == torch.float32 else torch.finfo(dtype).eps) * expected.abs()
        allowed += torch.finfo(dtype).smallest_normal
        assert bool(((found.double() - expected).abs() <= allowed).all()), isa


def test_inputs_of_any_order() -> None:
    weight = NormWeight(torch.randn(24), 1e-6)
    assert_normalized(weight, torch.randn(24, 5).mT)
    assert_normalized(weight, torch.randn(3, 48)[:, ::2])
    assert_normalized(weight, torch.randn(24).expand(3, 24))


def test_zeros_stay_zeros_and_what_is_not_a_number_stays_in_its_row() -> None:
    weight, given = NormWeight(torch.ones(40), 1e-6), torch.randn(3, 40)
    given[0], given[1, 7] = 0, torch.nan
    found = NormPlan(weight).run(given)
    assert not found[0].any()
    assert bool(found[1].isnan().all())
    assert bool(found[2].isfinite().all())


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_number_of_threads_changes_nothing(dtype: torch.dtype) -> None:
    weight, given = NormWeight(torch.randn(300).to(dtype), 1e-6), torch.randn(500, 300).to(dtype)
    used, found = torch.get_num_threads(), []
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        found.append(NormPlan(weight).run(given))
    torch.set_num_threads(used)
    assert all(torch.equal(found[0], other) for other in found[1:])


UNFIT = {
    "two axes": torch.ones(2, 4),
    "empty": torch.ones(0),
    "float64": torch.ones(4, dtype=torch.float64),
    "with gaps": torch.ones(8)[::2],
    "elsewhere": torch.ones(4, device="meta"),
}


@pytest.mark.parametrize("numbers", UNFIT.values(), ids=UNFIT)
def test_weights_that_do_not_fit_are_refused(numbers: Tensor) -> None:
    with pytest.raises(ValueError, match="no weight"):
        NormPlan(NormWeight(numbers, 1e-6))


def test_an_offset_is_for_weights_that_meet_numbers_before_any_is_rounded() -> None:
    assert not NormWeight(torch.ones(4), 1e-6, NormForm(rounds_first=True, offset=1.0)).fits()


@pytest.mark.parametrize(
    "inputs",
    [torch.ones(3, 5), torch.ones(()), torch.ones(3, 4).bfloat16(), torch.ones(3, 4, device="meta")],
    ids=["another width", "no axis", "another dtype", "elsewhere"],
)
def test_inputs_that_do_not_fit_are_refused(inputs: Tensor) -> None:
    with pytest.raises(ValueError, match="do not fit a layer of"):
        NormPlan(NormWeight(torch.ones(4), 1e-6)).run(inputs)
