"""Linear layers behind each other by the compiled kernels, in every instruction set."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from support.dense_attention import DTYPES
from support.instruction_sets import needs_native
from support.linear_layers import behind_each_other, layer, reads
from winnow.cache.host_graph import HostGraph
from winnow.kernels import native
from winnow.kernels.linear import LinearPlan, Weight
from winnow.kernels.stack import StackPlan, layers_fit

pytestmark = needs_native
SHARED = [HealthCheck.function_scoped_fixture]
NUMBER = 4


def random_layers(outputs: int, inputs: int, bits: int, dtype: torch.dtype, bias: bool) -> list[Weight]:
    return [layer(outputs, inputs, bits, dtype, bias) for _ in range(NUMBER)]


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=SHARED)
@given(
    st.lists(st.tuples(st.integers(0, NUMBER - 1), st.integers(1, 5) | st.just(33)), max_size=6),
    st.integers(0, 130),
    st.integers(1, 5),
    st.sampled_from([16, 8, 6, 5, 4]),
    st.sampled_from(DTYPES),
    st.booleans(),
    st.integers(1, 3),
)
def test_every_row_is_what_its_layer_gives(
    isas: list[str],
    runs: list[tuple[int, int]],
    outputs: int,
    groups: int,
    bits: int,
    dtype: torch.dtype,
    bias: bool,
    threads: int,
) -> None:
    """In any order, with any number of rows beside each other for a layer, to the bit."""
    torch.manual_seed(len(runs))
    outputs = -(-outputs // 64) * 64 if bits < 8 else outputs
    given_layers = random_layers(outputs, 32 * groups, bits, dtype, bias)
    plan, alone = StackPlan(behind_each_other(given_layers)), [LinearPlan(each) for each in given_layers]
    numbers = torch.tensor([number for number, count in runs for _ in range(count)], dtype=torch.int64)
    rows = torch.randn(len(numbers), 32 * groups).to(dtype)
    used = torch.get_num_threads()
    for isa in isas:
        native.select_isa(isa)
        if bits < 8 and not reads(dtype, bits):
            with pytest.raises(ValueError, match=f"{bits} bits"):
                plan.run(rows, numbers)
            continue
        torch.set_num_threads(threads)
        found = plan.run(rows, numbers)
        torch.set_num_threads(used)
        assert found.shape == (len(rows), outputs)
        ids, counts = numbers.unique_consecutive(return_counts=True)
        for number, part, outcome in zip(
            ids.tolist(), rows.split(counts.tolist()), found.split(counts.tolist()), strict=True
        ):
            assert torch.equal(outcome, alone[number].run(part)), isa


def test_layers_may_lie_apart() -> None:
    """Parameters of every second layer of a tensor, as a view shows them."""
    whole = behind_each_other(random_layers(5, 40, 16, torch.bfloat16, True))
    half = Weight(*(None if each is None else each[1::2] for each in whole))
    rows, numbers = torch.randn(6, 40).bfloat16(), torch.tensor([0, 1, 1, 0, 0, 1])
    assert torch.equal(StackPlan(half).run(rows, numbers), StackPlan(whole).run(rows, 2 * numbers + 1))


def test_a_recorded_call_takes_the_numbers_that_memory_has_then() -> None:
    plan = StackPlan(behind_each_other(random_layers(7, 12, 16, torch.float32, True)))
    rows, numbers = torch.randn(3, 12), torch.tensor([0, 1, 2])
    graph = HostGraph(lambda: plan.run(rows, numbers), torch.device("cpu"))
    graph.replay()
    numbers.copy_(torch.tensor([3, 3, 1]))
    graph.replay()
    assert torch.equal(graph.output, plan.run(rows, torch.tensor([3, 3, 1])))
    numbers[1] = NUMBER
    with pytest.raises(IndexError, match="there are 4"):
        graph.replay()


@pytest.mark.parametrize("number", [-1, NUMBER, 1 << 62])
def test_numbers_that_no_layer_has_are_refused(number: int) -> None:
    plan = StackPlan(behind_each_other(random_layers(7, 12, 16, torch.float32, True)))
    with pytest.raises(IndexError, match="a row is for a layer that there is not: there are 4"):
        plan.run(torch.ones(2, 12), torch.tensor([0, number]))


@pytest.mark.parametrize(
    ("rows", "numbers"),
    [
        (torch.ones(2, 11), torch.zeros(2, dtype=torch.int64)),
        (torch.ones(2, 12).half(), torch.zeros(2, dtype=torch.int64)),
        (torch.ones(12), torch.zeros(1, dtype=torch.int64)),
        (torch.ones(2, 12, device="meta"), torch.zeros(2, dtype=torch.int64)),
        (torch.ones(2, 12), torch.zeros(3, dtype=torch.int64)),
        (torch.ones(2, 12), torch.zeros(2, dtype=torch.int32)),
        (torch.ones(2, 12), torch.zeros(2, dtype=torch.int64, device="meta")),
    ],
    ids=["width", "dtype", "one dimension", "device", "fewer rows", "numbers of 32 bits", "numbers elsewhere"],
)
def test_what_does_not_fit_is_refused(rows: Tensor, numbers: Tensor) -> None:
    plan = StackPlan(behind_each_other(random_layers(7, 12, 16, torch.float32, False)))
    with pytest.raises(ValueError, match="do not"):
        plan.run(rows, numbers)


@pytest.mark.parametrize(
    "weights",
    [
        Weight(torch.ones(())),
        Weight(torch.ones(0, 4, 4)),
        Weight(torch.ones(4, 4)),
        Weight(torch.ones(3, 4, 5).mT),
        Weight(torch.ones(3, 4, 5), torch.ones(2, 4)),
        Weight(torch.ones(3, 4, 5), torch.ones(4)),
        Weight(torch.ones(3, 4, 5, dtype=torch.int8), None, torch.ones(4)),
    ],
    ids=["a number", "no layers", "one layer", "transposed", "fewer biases", "one bias", "one layer's scales"],
)
def test_weights_that_are_no_layers_are_refused(weights: Weight) -> None:
    assert not layers_fit(weights)
    with pytest.raises(ValueError, match="no layers that the kernels read"):
        StackPlan(weights)
