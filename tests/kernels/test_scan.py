"""State scan by the compiled kernel, in every instruction set, against float64 and against transformers."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional
from transformers.models.falcon_h1 import modeling_falcon_h1

from support.dense_attention import DTYPES
from support.instruction_sets import needs_native
from support.states import assert_close
from winnow.cache.host_graph import HostGraph
from winnow.kernels import native, scan

pytestmark = needs_native
SHARED = [HealthCheck.function_scoped_fixture]
LIMITS = [(0.0, float("inf")), (0.001, 0.1), (0.5, 2.0)]


class Given(NamedTuple):
    """Tensors of a scan, as `scan.scan` takes them."""

    inputs: Tensor
    steps: Tensor
    enter: Tensor
    leave: Tensor
    rates: Tensor
    biases: Tensor | None
    through: Tensor | None
    states: Tensor

    def tokens(self, first: int, last: int) -> Given:
        """Those first to last - 1, with the same states."""
        return Given(*(each[:, first:last] for each in self[:4]), *self[4:])


class How(NamedTuple):
    """Options of a scan: limits of steps, softplus, and whether outputs are fp32."""

    limits: tuple[float, float] = LIMITS[0]
    softplus: bool = True
    wide: bool = False


class Sizes(NamedTuple):
    """Shapes of a problem."""

    rows: int = 1
    tokens: int = 5
    groups: int = 1
    shared: int = 2
    dim: int = 16
    state_dim: int = 16


def problem(sizes: Sizes, dtype: torch.dtype, decay: float = 1.0, extras: bool = True) -> Given:
    """Inputs, B and C as parts of one projection and steps of another, as models leave them; A down to -decay."""
    rows, tokens, groups, shared, dim, state_dim = sizes
    heads = groups * shared
    widths = [heads * dim, groups * state_dim, groups * state_dim]
    inputs, enter, leave = torch.randn(rows, tokens, sum(widths)).to(dtype).split(widths, dim=-1)
    steps = _far_from_ties(torch.randn(rows, tokens, heads + 3).to(dtype))[..., 3:]
    return Given(
        inputs.unflatten(-1, (heads, dim)),
        steps,
        enter.unflatten(-1, (groups, state_dim)),
        leave.unflatten(-1, (groups, state_dim)),
        -decay * torch.rand(heads),
        torch.full((heads,), 0.25) if extras else None,
        torch.randn(heads) if extras else None,
        torch.randn(rows, heads, dim, state_dim),
    )


def _far_from_ties(steps: Tensor) -> Tensor:
    """Steps without those that the last bits of a logarithm round up or down, which are large instead."""
    for bias in (0.0, 0.25):
        exact = functional.softplus((steps + bias).double())
        near = (exact * (1 - 1e-5)).to(steps.dtype) != (exact * (1 + 1e-5)).to(steps.dtype)
        if steps.dtype != torch.float32:
            steps = torch.where(near, 24, steps)
    return steps


def steps_of(given: Given, how: How) -> Tensor:
    """Steps as they count, in float64: rounded to their dtype after each addition, logarithm and limit."""
    steps = given.steps if given.biases is None else given.steps + given.biases.to(given.steps.dtype)
    if how.softplus:
        steps = functional.softplus(steps.double()).to(steps.dtype)
    return steps.clamp(*how.limits).double()


def by_definition(given: Given, how: How) -> tuple[Tensor, Tensor]:
    """Outputs and states in float64, token by token."""
    inputs, states, rates = given.inputs.double(), given.states.double(), given.rates.double()
    shared = inputs.shape[2] // given.enter.shape[2]
    enter, leave = (each.double().repeat_interleave(shared, dim=2) for each in (given.enter, given.leave))
    steps, outputs = steps_of(given, how), torch.zeros_like(inputs)
    for t in range(inputs.shape[1]):
        step = steps[:, t, :, None, None]
        states = states * (step * rates[:, None, None]).exp() + step * inputs[:, t, ..., None] * enter[:, t, :, None]
        outputs[:, t] = torch.einsum("rhps,rhs->rhp", states, leave[:, t])
    if given.through is not None:
        outputs = outputs + given.through.double()[:, None] * inputs
    return outputs, states


def by_kernel(given: Given, how: How) -> tuple[Tensor, Tensor]:
    """Outputs, and states that were changed in a copy."""
    given = given._replace(states=given.states.clone())
    layout = scan.layout_of(*given[:4], given.states)
    assert layout is not None
    dtype = torch.float32 if how.wide else given.inputs.dtype
    outputs = scan.scan(*given, how.limits, how.softplus, dtype, layout)
    assert outputs.dtype == dtype
    return outputs, given.states


@settings(max_examples=80, deadline=None, derandomize=True, suppress_health_check=SHARED)
@given(
    st.builds(
        Sizes,
        st.integers(0, 3),
        st.sampled_from([0, 1, 1, 2, 3, 4, 5, 17, 40]),
        st.integers(1, 3),
        st.integers(1, 3),
        st.integers(1, 200) | st.sampled_from([64, 80, 128]),
        st.integers(1, 200) | st.sampled_from([64, 128, 256]),
    ),
    st.sampled_from(DTYPES),
    st.sampled_from([0.0, 0.01, 1.0, 30.0]),
    st.booleans(),
    st.builds(How, st.sampled_from(LIMITS), st.booleans(), st.booleans()),
    st.integers(0, 99),
)
def test_states_of_any_shape(
    isas: list[str], sizes: Sizes, dtype: torch.dtype, decay: float, extras: bool, how: How, seed: int
) -> None:
    torch.manual_seed(seed)
    given = problem(sizes, dtype, decay, extras)
    exact = by_definition(given, how)
    for isa in isas:
        native.select_isa(isa)
        assert_close(by_kernel(given, how), exact)


@pytest.mark.parametrize("cuts", [[1], [2], [3, 4], list(range(1, 23))])
def test_a_prompt_in_pieces_is_the_same_prompt(isa: str, cuts: list[int]) -> None:
    torch.manual_seed(1)
    given = problem(Sizes(rows=2, tokens=23, dim=70, state_dim=33), torch.float32)
    whole, states = by_kernel(given, How())
    outputs, continued = [], given.states
    for first, last in zip([0, *cuts], [*cuts, 23], strict=True):
        piece, continued = by_kernel(given._replace(states=continued).tokens(first, last), How())
        outputs.append(piece)
    torch.testing.assert_close(torch.cat(outputs, dim=1), whole, rtol=1e-5, atol=3e-5)
    torch.testing.assert_close(continued, states, rtol=1e-5, atol=3e-5)


@pytest.mark.parametrize("rate", [-1e4, -torch.inf, -100.0, -1e-9, 0.0])
@pytest.mark.parametrize("tokens", [1, 300])
def test_states_that_are_forgotten_or_kept(isa: str, rate: float, tokens: int) -> None:
    torch.manual_seed(2)
    given = problem(Sizes(tokens=tokens, shared=3, dim=24, state_dim=24), torch.float32)
    given.rates[1] = rate
    assert_close(by_kernel(given, How()), by_definition(given, How()))


def test_a_state_before_a_decay_to_nothing_changes_nothing(isa: str) -> None:
    torch.manual_seed(3)
    given = problem(Sizes(tokens=7), torch.bfloat16)
    given.rates.fill_(-1e4)
    outputs, states = by_kernel(given, How())
    others, same = by_kernel(given._replace(states=5 * given.states), How())
    assert torch.equal(outputs, others)
    assert torch.equal(states, same)


@pytest.mark.parametrize("dtype", DTYPES)
def test_steps_of_any_size(isa: str, dtype: torch.dtype) -> None:
    torch.manual_seed(4)
    given = problem(Sizes(tokens=400, shared=1, dim=1, state_dim=1), dtype, extras=False)
    given.steps.copy_(_far_from_ties(torch.linspace(-30, 30, 400).to(dtype))[:, None])
    given.rates.fill_(-1e6)
    ones = given._replace(inputs=torch.ones_like(given.inputs), enter=torch.ones_like(given.enter))
    found, _ = by_kernel(ones._replace(leave=torch.ones_like(given.leave)), How(wide=True))
    exact = steps_of(given, How())
    known = exact > 1e-4  # others leave something of the state before
    torch.testing.assert_close(found[..., 0].double()[known], exact[known], rtol=1e-6, atol=0)


@pytest.mark.parametrize("number", [torch.nan, torch.inf])
@pytest.mark.parametrize("tokens", [1, 6])
def test_what_is_not_a_number_stays_in_its_channel_or_head(isa: str, number: float, tokens: int) -> None:
    torch.manual_seed(5)
    given = problem(Sizes(rows=2, tokens=tokens, shared=4), torch.float32)
    expected, _ = by_kernel(given, How())
    given.inputs[0, 0, 1, 5] = number
    given.steps[1, 0, 2] = number
    found, _ = by_kernel(given, How())
    wrong = torch.zeros_like(found, dtype=torch.bool)
    wrong[0, :, 1, 5], wrong[1, :, 2] = True, True
    assert torch.equal(found[~wrong], expected[~wrong])
    assert not found[0, 0, 1, 5].isfinite()


@pytest.mark.parametrize("tokens", [0, 1, 100])
def test_the_number_of_threads_changes_nothing(threads: None, tokens: int) -> None:
    torch.manual_seed(6)
    given = problem(Sizes(tokens=tokens, groups=3, dim=100, state_dim=128), torch.bfloat16)
    found = []
    for number in (1, 2, 3):
        torch.set_num_threads(number)
        found.append(by_kernel(given, How()))
    for outputs, states in found[1:]:
        assert torch.equal(outputs, found[0][0])
        assert torch.equal(states, found[0][1])


def test_no_tokens_leave_states_alone() -> None:
    given = problem(Sizes(tokens=0), torch.float32)
    assert torch.equal(by_kernel(given, How())[1], given.states)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("limits", LIMITS)
def test_a_prompt_is_what_transformers_computes(isa: str, dtype: torch.dtype, limits: tuple[float, float]) -> None:
    torch.manual_seed(7)
    given = problem(Sizes(2, 70, 2, 2, 64, 96), dtype)
    inputs, steps, enter, leave, rates, biases, through, states = given
    outputs, last = modeling_falcon_h1.mamba2_chunk_scan(
        *(inputs, steps, rates, enter, leave),
        chunk_size=32,
        D=through,
        dt_bias=biases,
        initial_states=states,
        dt_softplus=True,
        dt_limit=limits,
        return_final_states=True,
    )
    found, changed = by_kernel(given, How(limits, wide=True))
    torch.testing.assert_close(found, outputs, rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(changed, last, rtol=1e-4, atol=1e-4)


def test_a_token_is_what_transformers_computes(isa: str) -> None:
    torch.manual_seed(8)
    given = problem(Sizes(2, 1, 2, 2, 64, 96), torch.float32)
    dim, state_dim = given.states.shape[2:]
    assert given.biases is not None
    assert given.through is not None
    states = given.states.clone()
    outputs = modeling_falcon_h1.mamba2_selective_state_update(
        states,
        given.inputs[:, 0],
        given.steps[:, 0, :, None].expand(-1, -1, dim),
        given.rates[:, None, None].expand(-1, dim, state_dim),
        given.enter[:, 0],
        given.leave[:, 0],
        given.through[:, None].expand(-1, dim),
        dt_bias=given.biases[:, None].expand(-1, dim),
        dt_softplus=True,
    )
    found, changed = by_kernel(given, How())
    torch.testing.assert_close(found[:, 0], outputs, rtol=1e-5, atol=3e-5)
    torch.testing.assert_close(changed, states, rtol=1e-5, atol=1e-5)


def test_a_recorded_step_is_done_again_on_other_numbers() -> None:
    torch.manual_seed(9)
    given, other = (problem(Sizes(rows=2, tokens=1), torch.bfloat16) for _ in range(2))
    other = given._replace(**dict(zip(Given._fields[:4], other[:4], strict=True)))
    held = given._replace(states=given.states.clone())
    layout = scan.layout_of(*held[:4], held.states)
    assert layout is not None
    graph = HostGraph(
        lambda: scan.scan(*held, LIMITS[0], True, torch.bfloat16, layout),
        torch.device("cpu"),
    )
    graph.replay()
    expected, states = by_kernel(given, How())
    assert torch.equal(graph.output, expected)
    for each, fresh in zip(held[:4], other[:4], strict=True):
        each.copy_(fresh)
    graph.replay()
    expected, states = by_kernel(other._replace(states=states), How())
    assert torch.equal(graph.output, expected)
    assert torch.equal(held.states, states)


def refused() -> dict[str, Given]:
    """Tensors that the kernel does not read."""
    given = problem(Sizes(rows=2), torch.float32)
    return {
        "three axes": given._replace(inputs=given.inputs[0]),
        "float64": Given(*(each.double() for each in given[:4]), *given[4:]),
        "steps of another dtype": given._replace(steps=given.steps.half()),
        "B of another dtype": given._replace(enter=given.enter.half()),
        "states in half precision": given._replace(states=given.states.half()),
        "states with gaps": given._replace(states=given.states.mT.contiguous().mT),
        "states of other rows": given._replace(states=given.states[:1]),
        "C of another width": given._replace(leave=given.leave[..., :8]),
        "B and C of other tokens": given._replace(enter=given.enter[:, :3], leave=given.leave[:, :3]),
        "steps of other heads": given._replace(steps=given.steps[..., :1]),
        "two heads of three groups": given._replace(**{name: torch.zeros(2, 5, 3, 16) for name in ("enter", "leave")}),
        "channels that are apart": given._replace(inputs=torch.zeros(2, 5, 2, 32)[..., ::2]),
        "heads that are apart": given._replace(inputs=torch.zeros(2, 5, 4, 16)[:, :, ::2]),
        "steps that are apart": given._replace(steps=torch.zeros(2, 5, 4)[..., ::2]),
        "no group": given._replace(enter=given.enter[:, :, :0], leave=given.leave[:, :, :0]),
        "a state too large": problem(Sizes(state_dim=257), torch.float32),
        "another device": Given(*(each.to("meta") for each in given if each is not None)),
    }


REFUSED = refused()


@pytest.mark.parametrize("case", REFUSED)
def test_what_the_kernel_does_not_read_is_told(case: str) -> None:
    given = REFUSED[case]
    assert scan.layout_of(*given[:4], given.states) is None
