"""Linear layers by the compiled kernels, in every instruction set, against float64."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from support.dense_attention import DTYPES
from support.instruction_sets import needs_native
from support.linear_layers import layer, levels_of, reads
from support.many_rows import FEW_ROWS, MOST_BYTE, MOST_WHOLE, as_steps, lost_by_rounding
from winnow.kernels import native
from winnow.kernels.linear import LinearPlan, Weight, multiplies_many, outputs_together

pytestmark = needs_native
SHARED = [HealthCheck.function_scoped_fixture]
WITH_AVX512 = ("zen4", "zen5", "avx512bf16", "avx512vnni", "avx512", "amx")
TOGETHER = {**dict.fromkeys(WITH_AVX512, 64), "avx2": 32}
"""Outputs that lie beside each other in weights of few bits, where there is a kernel for these."""
ROWS = st.integers(0, 33) | st.sampled_from([1, 2, 40, 65, 130])


def written_out(weight: Weight) -> Tensor:
    """[O, I] fp64, from the definition of the order of numbers."""
    together = TOGETHER.get(native.isa(), 64)
    numbers, scales = weight.numbers, weight.scales
    if scales is None:
        return numbers.double()
    if weight.bits == 8:
        return numbers * scales.double()[:, None]
    levels = levels_of(weight, together).double() - (1 << (weight.bits - 1))
    if weight.bits == 6:
        return levels * scales.double().T.repeat_interleave(16, dim=1)
    scale, middle = scales.double().transpose(0, 1).repeat_interleave(32, dim=1).unbind(dim=2)
    return levels * scale + middle


def assert_products(weight: Weight, inputs: Tensor) -> None:
    """Outputs are those of float64, rounded once after sums in fp32."""
    found = LinearPlan(weight).run(inputs)
    assert found.shape == (*inputs.shape[:-1], weight.sizes[0])
    assert found.dtype == inputs.dtype
    assert found.is_contiguous()
    held = written_out(weight)
    exact, summed = inputs.double() @ held.T, inputs.double().abs() @ held.abs().T
    if weight.bias is not None:
        exact, summed = exact + weight.bias.double(), summed + weight.bias.double().abs()
    # A number of few bits and its middle cancel, so that what is added up is larger than their sum.
    allowed = torch.finfo(inputs.dtype).eps * exact.abs() + (1e-4 if weight.bits < 6 else 1e-5) * summed + 1e-30
    allowed = allowed + lost_by_rounding(inputs, held, weight.bits)
    assert bool(((found.double() - exact).abs() <= allowed).all()), native.isa()


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=SHARED)
@given(
    st.integers(0, 140),
    st.integers(1, 200) | st.sampled_from([1000, 3000, 7001]),
    ROWS,
    st.sampled_from([16, 8]),
    st.sampled_from(DTYPES),
    st.booleans(),
    st.integers(0, 99),
)
def test_products_of_any_shape(
    isas: list[str], outputs: int, inputs: int, rows: int, bits: int, dtype: torch.dtype, bias: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    weight = layer(outputs, inputs, bits, dtype, bias)
    given = torch.randn(rows, inputs).div(inputs**0.5).to(dtype)
    for isa in isas:
        native.select_isa(isa)
        assert_products(weight, given)


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=SHARED)
@given(
    st.integers(1, 3),
    st.integers(1, 20),
    ROWS,
    st.sampled_from([4, 5, 6]),
    st.sampled_from([torch.bfloat16, torch.bfloat16, *DTYPES]),
    st.booleans(),
    st.integers(0, 99),
)
def test_products_with_4_to_6_bits(
    isas: list[str], blocks: int, groups: int, rows: int, bits: int, dtype: torch.dtype, bias: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    weight = layer(64 * blocks, 32 * groups, bits, dtype, bias)
    given = torch.randn(rows, 32 * groups).to(dtype)
    for isa in isas:
        native.select_isa(isa)
        together = outputs_together(dtype)
        assert together == (TOGETHER.get(isa, 0) if isa == "avx2" or dtype == torch.bfloat16 else 0)
        if reads(dtype, bits):
            assert_products(weight, given)
        else:
            with pytest.raises(ValueError, match=f"a weight of {bits} bits"):
                LinearPlan(weight).run(given)


@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=SHARED)
@given(st.integers(1, 4), st.integers(1, 20), st.data(), st.integers(0, 99))
def test_a_weight_of_4_bits_is_written_out(isas: list[str], blocks: int, groups: int, data, seed: int) -> None:
    torch.manual_seed(seed)
    weight = layer(64 * blocks, 32 * groups, 4, torch.bfloat16, bias=False)
    first = data.draw(st.integers(0, blocks))
    part = slice(64 * first, 64 * data.draw(st.integers(first, blocks)))
    for isa in isas:
        native.select_isa(isa)
        found = LinearPlan(weight).written_out(part)
        assert (found is None) == (isa not in WITH_AVX512)
        if found is not None:
            assert torch.equal(found, written_out(weight)[part].float().bfloat16())


@pytest.mark.parametrize("part", [slice(0, 63), slice(1, 64), slice(64, 0), slice(0, 128, 2)])
def test_parts_that_cut_a_block_are_refused(part: slice) -> None:
    with pytest.raises(ValueError, match="cut a block"):
        LinearPlan(layer(128, 32, 4, torch.bfloat16, bias=False)).written_out(part)


def test_other_weights_are_not_written_out() -> None:
    for bits in (16, 8, 6, 5):
        assert LinearPlan(layer(64, 32, bits, torch.bfloat16, bias=False)).written_out(slice(None)) is None


def test_inputs_of_any_shape_and_order() -> None:
    weight = layer(70, 24, 16, torch.float32, bias=True)
    for shape in ((24,), (2, 3, 24), (0, 24)):
        assert_products(weight, torch.randn(shape))
    assert_products(weight, torch.randn(24, 5).mT)
    assert_products(weight, torch.randn(3, 48)[:, ::2])


def test_what_is_not_a_number_stays_where_it_is() -> None:
    weight, given = layer(130, 40, 16, torch.float32, bias=False), torch.randn(3, 40)
    given[1, 7] = torch.nan
    weight.numbers[129, 3] = torch.inf
    found = LinearPlan(weight).run(given)
    assert bool(found[1].isnan().all())
    assert bool(found[[0, 2], :129].isfinite().all())


def test_a_plan_serves_several_threads() -> None:
    weight = layer(500, 300, 16, torch.float32, bias=True)
    plan, given = LinearPlan(weight), [torch.randn(1 + i % 5, 300) for i in range(40)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(plan.run, given))
    for one, inputs in zip(found, given, strict=True):
        torch.testing.assert_close(one, torch.nn.functional.linear(inputs, *weight[:2]), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("bits", [16, 8, 6, 5, 4])
@pytest.mark.parametrize("outputs", [640, 1984, 6400])  # threads take many blocks at first, in the end one each
def test_the_number_of_threads_changes_nothing(bits: int, outputs: int) -> None:
    dtype = torch.float32 if bits == 16 else torch.bfloat16
    weight = layer(outputs, 640, bits, dtype, bias=True)
    if bits < 8 and not reads(dtype, bits):
        pytest.skip("no kernel of so few bits for this instruction set")
    plan, given, used = LinearPlan(weight), torch.randn(3, 640).to(dtype), torch.get_num_threads()
    found = []
    for threads in (1, 2, 3, 5):
        torch.set_num_threads(threads)
        found.append(plan.run(given))
    torch.set_num_threads(used)
    assert all(torch.equal(found[0], other) for other in found[1:])


@pytest.mark.parametrize("bits", [16, 8, 6, 5, 4])
@pytest.mark.parametrize(("rows", "inputs", "outputs"), [(700, 96, 64), (97, 704, 192), (250, 32768, 64)])
def test_many_rows_are_the_same_with_any_threads_and_beside_others(
    bits: int, rows: int, inputs: int, outputs: int
) -> None:
    """In parts of the rows for each thread, in one, and in so many rows, or numbers, that there are two passes."""
    if not multiplies_many(torch.bfloat16) or (bits < 8 and not reads(torch.bfloat16, bits)):
        pytest.skip("made for few rows here, or not for so few bits")
    weight, used = layer(outputs, inputs, bits, torch.bfloat16, bias=True), torch.get_num_threads()
    plan, given = LinearPlan(weight), torch.randn(rows, inputs).bfloat16()
    assert_products(weight, given)
    whole = plan.run(given)
    for threads in (1, 3):
        torch.set_num_threads(threads)
        found = plan.run(given[10:90]), plan.run(given)
        torch.set_num_threads(used)
        assert torch.equal(found[0], whole[10:90])
        assert torch.equal(found[1], whole)


@settings(max_examples=30, deadline=None, derandomize=True, suppress_health_check=SHARED)
@given(
    st.integers(1, 3),
    st.integers(1, 20),
    st.integers(FEW_ROWS + 1, 140),
    st.sampled_from([8, 6, 5, 4]),
    st.floats(-30, 30),
    st.integers(0, 99),
)
def test_many_rows_are_bytes_where_weights_have_few_bits(
    isas: list[str], blocks: int, groups: int, rows: int, bits: int, mean: float, seed: int
) -> None:
    """On AMD's processors: products are those of rounded inputs, whatever their mean and the sizes beside them."""
    torch.manual_seed(seed)
    weight = layer(64 * blocks - (bits == 8), 32 * groups - (bits == 8), bits, torch.bfloat16, bias=False)
    given = (torch.randn(rows, weight.sizes[1]) + mean).bfloat16()
    given[:, ::7] *= 40
    for isa in isas:
        native.select_isa(isa)
        if isa.startswith("zen"):
            assert_products_of_steps(weight, given, MOST_BYTE)


@settings(max_examples=30, deadline=None, derandomize=True, suppress_health_check=SHARED)
@given(
    st.integers(1, 3),
    st.integers(1, 20),
    st.integers(1, 9) | st.integers(1, 140),
    st.floats(-30, 30),
    st.integers(0, 99),
)
def test_rows_are_whole_numbers_where_avx2_multiplies_levels(
    isas: list[str], blocks: int, groups: int, rows: int, mean: float, seed: int
) -> None:
    torch.manual_seed(seed)
    weight = layer(64 * blocks, 32 * groups, 4, torch.bfloat16, bias=False)
    given = (torch.randn(rows, weight.sizes[1]) + mean).bfloat16()
    given[:, ::7] *= 40
    if "avx2" in isas:
        native.select_isa("avx2")
        assert_products_of_steps(weight, given, MOST_WHOLE if rows <= FEW_ROWS else MOST_BYTE)


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 7, 32])
def test_a_row_that_meets_levels_with_avx2_is_the_same_beside_others(isas: list[str], rows: int) -> None:
    weight, given = layer(192, 224, 4, torch.bfloat16, bias=True), torch.randn(rows, 224).bfloat16()
    if "avx2" not in isas:
        pytest.skip("no AVX2 here")
    native.select_isa("avx2")
    plan = LinearPlan(weight)
    alone = torch.cat([plan.run(each[None]) for each in given])
    assert torch.equal(plan.run(given), alone)


def assert_products_of_steps(weight: Weight, given: Tensor, steps: int) -> None:
    """Outputs are those of inputs as whole numbers, the largest of which are so many steps."""
    taken, of = as_steps(given, steps), written_out(weight)
    exact, summed = taken @ of.T, taken.abs() @ of.abs().T
    found = LinearPlan(weight).run(given).double()
    # A number of few bits and its middle cancel, as above.
    allowed = torch.finfo(torch.bfloat16).eps * exact.abs() + (1e-4 if weight.bits < 6 else 1e-5) * summed
    assert bool(((found - exact).abs() <= allowed).all())


@pytest.mark.parametrize("bits", [16, 8, 6, 5, 4])
def test_what_is_not_a_number_stays_in_its_row_of_many(isas: list[str], bits: int) -> None:
    weight, given = layer(128, 160, bits, torch.bfloat16, bias=False), torch.randn(40, 160).bfloat16()
    given[3, 7], given[5, 100], given[6], given[7] = torch.nan, torch.inf, 0, 1e-38
    whole = [row for row in range(40) if row not in (3, 5)]
    for isa in isas:
        native.select_isa(isa)
        if bits >= 8 or reads(torch.bfloat16, bits):
            found = LinearPlan(weight).run(given)
            assert not bool(found[[3, 5]].isfinite().any())
            assert bool(found[whole].isfinite().all())
            assert float(found[6].abs().max()) == 0
            assert float(found[7].abs().max()) < 1e-30
    if bits == 16:
        weight.numbers[127, 3] = torch.inf
        assert not bool(LinearPlan(weight).run(given)[:6, 127].isfinite().any())


WRONG = {
    "a weight of no dtype that kernels know": Weight(torch.ones(4, 4, dtype=torch.float64)),
    "a weight with gaps": Weight(torch.ones(4, 8)[:, ::2]),
    "a bias of another length": Weight(torch.ones(4, 4), torch.ones(3)),
    "a bias of another dtype": Weight(torch.ones(4, 4), torch.ones(4).bfloat16()),
    "scales of what has none": Weight(torch.ones(4, 4), None, torch.ones(4)),
    "8 bits without scales": Weight(torch.ones(4, 4, dtype=torch.int8)),
    "8 bits with too few scales": Weight(torch.ones(4, 4, dtype=torch.int8), None, torch.ones(3)),
    "4 bits of a part of a block": Weight(
        torch.ones(32, 16, dtype=torch.uint8), None, torch.ones(1, 32, 2, dtype=torch.bfloat16)
    ),
    "5 bits with the scales of 6": Weight(
        torch.ones(64, 20, dtype=torch.uint8), None, torch.ones(2, 64, dtype=torch.bfloat16)
    ),
    "6 bits with the scales of 5": Weight(
        torch.ones(64, 24, dtype=torch.uint8), None, torch.ones(1, 64, 2, dtype=torch.bfloat16)
    ),
    "6 bits of a part of a block": Weight(
        torch.ones(32, 24, dtype=torch.uint8), None, torch.ones(2, 32, dtype=torch.bfloat16)
    ),
    "no inputs": Weight(torch.ones(4, 0)),
    "another device": Weight(torch.ones(4, 4, device="meta")),
}


@pytest.mark.parametrize("case", WRONG)
def test_weights_that_do_not_fit_are_refused(case: str) -> None:
    assert not WRONG[case].fits()
    with pytest.raises(ValueError, match="a weight"):
        LinearPlan(WRONG[case])


@pytest.mark.parametrize(
    "inputs", [torch.ones(()), torch.ones(2, 3), torch.ones(2, 4).half(), torch.ones(2, 4, device="meta")]
)
def test_inputs_that_do_not_fit_are_refused(inputs: Tensor) -> None:
    with pytest.raises(ValueError, match="do not fit a layer"):
        LinearPlan(Weight(torch.ones(5, 4))).run(inputs)
