"""Short causal convolutions by the compiled kernel, in every instruction set, against float64 and transformers."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers.models.lfm2 import modeling_lfm2
from transformers.models.qwen3_5 import modeling_qwen3_5

from support.dense_attention import DTYPES
from support.instruction_sets import needs_native
from winnow.cache.host_graph import HostGraph
from winnow.kernels import convolution, native

pytestmark = needs_native
SHARED = [HealthCheck.function_scoped_fixture]


def by_definition(inputs: Tensor, weight: Tensor, bias: Tensor | None, states: Tensor | None) -> tuple[Tensor, Tensor]:
    """Sums in float64, and those of their products' sizes."""
    rows, channels, tokens = inputs.shape
    taps = weight.shape[1]
    before = torch.zeros(rows, channels, taps - 1) if states is None else states[..., states.shape[2] - taps + 1 :]
    padded = torch.cat([before.double(), inputs.double()], dim=-1)
    sums = torch.zeros(rows, channels, tokens, dtype=torch.float64)
    if bias is not None:
        sums += bias.double()[:, None]
    sizes = sums.abs()
    for k in range(taps):
        each = padded[..., k : k + tokens] * weight.double()[:, k, None]
        sums, sizes = sums + each, sizes + each.abs()
    return sums, sizes


def by_kernel(inputs: Tensor, weight: Tensor, bias: Tensor | None, silu: bool, states: Tensor | None) -> Tensor:
    """Outputs; states are moved on."""
    layout = convolution.layout_of(inputs, weight, bias, states)
    assert layout is not None
    outputs = convolution.convolve(inputs, weight, bias, silu, states, layout)
    assert (outputs.shape, outputs.dtype) == (inputs.shape, inputs.dtype)
    assert outputs.transpose(1, 2).is_contiguous()
    return outputs


def as_projected(rows: int, tokens: int, channels: int, beside: int, dtype: torch.dtype) -> Tensor:
    """[R, C, N] as it lies after a projection, of which others are beside it."""
    return torch.randn(rows, tokens, channels + beside).to(dtype)[..., beside:].transpose(1, 2)


def assert_activated(found: Tensor, sums: Tensor) -> None:
    """SiLU of sums that were rounded, rounded once more."""
    exact = torch.nn.functional.silu(sums.double())
    allowed = (0.51 * torch.finfo(found.dtype).eps + 1e-6) * exact.abs() + torch.finfo(found.dtype).smallest_normal
    assert bool(((found.double() - exact).abs() <= allowed).all()), native.isa()


@settings(max_examples=80, deadline=None, derandomize=True, suppress_health_check=SHARED)
@given(
    st.integers(0, 3),
    st.sampled_from([0, 1, 1, 2, 3, 8, 63, 64, 65, 130]),
    st.integers(1, 300) | st.sampled_from([256, 512, 600]),
    st.integers(2, 8),
    st.sampled_from([None, -1, 0, 2]),
    st.booleans(),
    st.integers(0, 5),
    st.sampled_from(DTYPES),
    st.integers(0, 99),
)
def test_channels_of_any_shape(
    isas: list[str],
    rows: int,
    tokens: int,
    channels: int,
    taps: int,
    more: int | None,
    biased: bool,
    beside: int,
    dtype: torch.dtype,
    seed: int,
) -> None:
    torch.manual_seed(seed)
    inputs = as_projected(rows, tokens, channels, beside, dtype)
    weight, bias = torch.randn(channels, taps).to(dtype), torch.randn(channels).to(dtype) if biased else None
    states = None if more is None else torch.randn(rows, channels, taps + more).to(dtype)
    sums, sizes = by_definition(inputs, weight, bias, states)
    moved = None if states is None else torch.cat([states, inputs], dim=-1)[..., tokens:]
    for isa in isas:
        native.select_isa(isa)
        held = None if states is None else states.clone()
        found = by_kernel(inputs, weight, bias, False, held)
        error = 1e-6 * sizes + torch.finfo(dtype).smallest_normal
        assert bool(((found.double() - sums).abs() <= error + 0.51 * torch.finfo(dtype).eps * sums.abs()).all()), isa
        if moved is not None:
            assert torch.equal(held, moved), isa
        again = None if states is None else states.clone()
        assert_activated(by_kernel(inputs, weight, bias, True, again), found)


@pytest.mark.parametrize("more", [-1, 0, 3])
@pytest.mark.parametrize("cuts", [[1], [2, 3], [70], list(range(1, 12))])
def test_a_prompt_in_pieces_is_the_same_prompt(isa: str, more: int, cuts: list[int]) -> None:
    torch.manual_seed(0)
    tokens, dtype = max(cuts) + 5, torch.bfloat16
    inputs, weight = as_projected(2, tokens, 300, 3, dtype), torch.randn(300, 4).to(dtype)
    whole = by_kernel(inputs, weight, None, True, None)
    states = torch.zeros(2, 300, 4 + more, dtype=dtype)
    pieces = [
        by_kernel(inputs[..., first:last], weight, None, True, states)
        for first, last in zip([0, *cuts], [*cuts, tokens], strict=True)
    ]
    assert torch.equal(torch.cat(pieces, dim=-1), whole)
    assert torch.equal(states, torch.cat([torch.zeros_like(states), inputs], dim=-1)[..., tokens:])


@pytest.mark.parametrize("tokens", [1, 50, 200])
def test_the_number_of_threads_changes_nothing(threads: None, tokens: int) -> None:
    torch.manual_seed(1)
    inputs, weight = as_projected(2, tokens, 3000, 0, torch.float32), torch.randn(3000, 3)
    found = []
    for number in (1, 2, 3):
        torch.set_num_threads(number)
        states = torch.ones(2, 3000, 3)
        found.append((by_kernel(inputs, weight, None, True, states), states))
    for outputs, states in found[1:]:
        assert torch.equal(outputs, found[0][0])
        assert torch.equal(states, found[0][1])


def test_what_is_not_a_number_stays_in_its_channel(isa: str) -> None:
    inputs, weight = as_projected(1, 9, 20, 0, torch.float32), torch.randn(20, 3)
    inputs[0, 7, 4] = torch.nan
    expected = torch.zeros(1, 20, 9, dtype=torch.bool)
    expected[0, 7, 4:7] = True
    for silu in (False, True):
        assert torch.equal(by_kernel(inputs, weight, None, silu, None).isnan(), expected)


@pytest.mark.parametrize("modeling", [modeling_qwen3_5, modeling_lfm2])
@pytest.mark.parametrize("activation", [None, "silu"])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_it_is_what_transformers_computes(modeling, activation: str | None, biased: bool, dtype: torch.dtype) -> None:
    torch.manual_seed(2)
    inputs, weight = as_projected(2, 21, 96, 0, dtype), torch.randn(96, 4).to(dtype)
    bias = torch.randn(96).to(dtype) if biased else None
    silu = activation is not None
    close = {"rtol": 2 * torch.finfo(dtype).eps, "atol": 4 * torch.finfo(dtype).eps}
    expected = modeling.causal_conv1d_fn(inputs, weight, bias, activation)
    torch.testing.assert_close(by_kernel(inputs, weight, bias, silu, None), expected, **close)
    for length in (3, 4):
        states = torch.randn(2, 96, length).to(dtype)
        others = states.clone()
        expected = modeling.causal_conv1d_update(inputs[..., :1], others, weight, bias, activation)
        torch.testing.assert_close(by_kernel(inputs[..., :1], weight, bias, silu, states), expected, **close)
        assert torch.equal(states, others)


def test_a_recorded_step_is_done_again_on_other_numbers() -> None:
    torch.manual_seed(3)
    inputs, weight = as_projected(2, 1, 40, 0, torch.bfloat16), torch.randn(40, 4).bfloat16()
    states = torch.randn(2, 40, 4).bfloat16()
    others = states.clone()
    layout = convolution.layout_of(inputs, weight, None, states)
    assert layout is not None
    work = lambda: convolution.convolve(inputs, weight, None, True, states, layout)  # noqa: E731
    graph = HostGraph(work, torch.device("cpu"))
    for _ in range(3):
        graph.replay()
        assert torch.equal(graph.output, by_kernel(inputs, weight, None, True, others))
        assert torch.equal(states, others)
        inputs.copy_(torch.randn(2, 40, 1))


INPUTS = as_projected(2, 5, 6, 0, torch.float32)
WEIGHT = torch.ones(6, 4)
REFUSED = {
    "two axes": (INPUTS[0], WEIGHT, None, None),
    "channels that are apart": (INPUTS.contiguous(), WEIGHT, None, None),
    "float64": (INPUTS.double(), WEIGHT.double(), None, None),
    "a weight of another dtype": (INPUTS, WEIGHT.half(), None, None),
    "a weight with gaps": (INPUTS, torch.ones(6, 8)[:, ::2], None, None),
    "a weight of other channels": (INPUTS, WEIGHT[:3], None, None),
    "one tap": (INPUTS, torch.ones(6, 1), None, None),
    "nine taps": (INPUTS, torch.ones(6, 9), None, None),
    "a bias of other channels": (INPUTS, WEIGHT, torch.ones(3), None),
    "a bias of another dtype": (INPUTS, WEIGHT, torch.ones(6).half(), None),
    "states that are too short": (INPUTS, WEIGHT, None, torch.ones(2, 6, 2)),
    "states of other rows": (INPUTS, WEIGHT, None, torch.ones(1, 6, 4)),
    "states with gaps": (INPUTS, WEIGHT, None, torch.ones(2, 4, 6).mT),
    "states of another dtype": (INPUTS, WEIGHT, None, torch.ones(2, 6, 4).half()),
    "another device": (INPUTS.to("meta"), WEIGHT.to("meta"), None, None),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_the_kernel_does_not_read_is_told(case: str) -> None:
    assert convolution.layout_of(*REFUSED[case]) is None
