"""Delta rules by the compiled kernel, in every instruction set, against float64 and against transformers."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers.models.kimi_linear import modeling_kimi_linear
from transformers.models.qwen3_5 import modeling_qwen3_5

from support.dense_attention import DTYPES
from support.instruction_sets import needs_native
from support.states import assert_close
from winnow.cache.host_graph import HostGraph
from winnow.kernels import delta, native

pytestmark = needs_native
SHARED = [HealthCheck.function_scoped_fixture]
GATED = modeling_qwen3_5.torch_recurrent_gated_delta_rule
KIMIS = modeling_kimi_linear.recurrent_kimi_delta_attention
of_both_rules = pytest.mark.parametrize("per_channel", [False, True], ids=["gated delta rule", "Kimi Delta Attention"])


class Given(NamedTuple):
    """Arguments of the rule, as `delta.recur` takes them."""

    queries: Tensor
    keys: Tensor
    values: Tensor
    decays: Tensor
    rates: Tensor
    states: Tensor

    def tokens(self, first: int, last: int) -> Given:
        """Those first to last - 1, with the same states."""
        return Given(*(each[:, first:last] for each in self[:5]), self.states)

    def double(self) -> Given:
        """The same in float64."""
        return Given(*(each.double() for each in self))


class Sizes(NamedTuple):
    """Shapes of a problem."""

    rows: int = 1
    tokens: int = 5
    key_heads: int = 2
    group: int = 2
    key_dim: int = 16
    value_dim: int = 16
    per_channel: bool = False
    """True where every channel of a key decays by itself."""


def problem(sizes: Sizes, dtype: torch.dtype, decay: float = 1.0) -> Given:
    """Queries, keys and values as parts of one projection, as models leave them; decays down to -decay."""
    rows, tokens, heads, group, key_dim, value_dim, per_channel = sizes
    widths = [heads * key_dim, heads * key_dim, heads * group * value_dim]
    parts = torch.randn(rows, tokens, sum(widths)).to(dtype).split(widths, dim=-1)
    queries, keys = (each.unflatten(-1, (heads, key_dim)) for each in parts[:2])
    values = parts[2].unflatten(-1, (heads * group, value_dim))
    rates = torch.rand(rows, tokens, heads * group).to(dtype)
    decays = -decay * torch.rand(*rates.shape, *((key_dim,) if per_channel else ()))
    return Given(queries, keys, values, decays, rates, torch.randn(rows, heads * group, key_dim, value_dim))


def by_definition(given: Given, normalized: bool) -> tuple[Tensor, Tensor]:
    """Outputs and states in float64, token by token."""
    queries, keys, values, decays, rates, states = given.double()
    decays = decays if decays.dim() == 4 else decays[..., None]
    group = values.shape[2] // keys.shape[2]
    if normalized:
        queries, keys = (each / (each.square().sum(-1, keepdim=True) + 1e-6).sqrt() for each in (queries, keys))
    outputs = torch.zeros_like(values)
    for t in range(values.shape[1]):
        query, key = (each[:, t].repeat_interleave(group, dim=1) for each in (queries, keys))
        states = states * decays[:, t, ..., None].exp()
        wrong = values[:, t] - torch.einsum("rhkv,rhk->rhv", states, key)
        states = states + torch.einsum("rhk,rhv->rhkv", key, wrong * rates[:, t, :, None])
        outputs[:, t] = torch.einsum("rhkv,rhk->rhv", states, query) / query.shape[-1] ** 0.5
    return outputs, states


def by_kernel(given: Given, normalized: bool) -> tuple[Tensor, Tensor]:
    """Outputs, and states that were changed in a copy."""
    given = given._replace(states=given.states.clone())
    layout = delta.layout_of(*given)
    assert layout is not None
    return delta.recur(*given, normalized, layout), given.states


@settings(max_examples=120, deadline=None, derandomize=True, suppress_health_check=SHARED)
@given(
    st.builds(
        Sizes,
        st.integers(0, 3),
        st.sampled_from([0, 1, 1, 2, 3, 4, 5, 17, 40]),
        st.integers(1, 3),
        st.integers(1, 3),
        st.integers(1, 200) | st.sampled_from([128, 256]),
        st.integers(1, 200) | st.sampled_from([128, 256]),
        st.booleans(),
    ),
    st.sampled_from(DTYPES),
    st.sampled_from([0.0, 0.01, 1.0, 30.0]),
    st.integers(0, 99),
)
def test_states_of_any_shape(isas: list[str], sizes: Sizes, dtype: torch.dtype, decay: float, seed: int) -> None:
    torch.manual_seed(seed)
    given = problem(sizes, dtype, decay)
    exact = by_definition(given, normalized=True)
    for isa in isas:
        native.select_isa(isa)
        found = by_kernel(given, normalized=True)
        assert found[0].dtype == dtype
        assert_close(found, exact)


@of_both_rules
@pytest.mark.parametrize("dtype", DTYPES)
def test_keys_that_are_not_normalized(isa: str, dtype: torch.dtype, per_channel: bool) -> None:
    torch.manual_seed(0)
    given = problem(Sizes(tokens=9, key_dim=40, value_dim=72, per_channel=per_channel), dtype)
    for each in (given.queries, given.keys):
        each.mul_(0.2)
    assert_close(by_kernel(given, normalized=False), by_definition(given, normalized=False))


@of_both_rules
@pytest.mark.parametrize("cuts", [[1], [2], [3, 4], list(range(1, 23))])
def test_a_prompt_in_pieces_is_the_same_prompt(isa: str, cuts: list[int], per_channel: bool) -> None:
    torch.manual_seed(1)
    given = problem(Sizes(rows=2, tokens=23, key_dim=33, value_dim=70, per_channel=per_channel), torch.float32)
    whole, states = by_kernel(given, normalized=True)
    outputs, continued = [], given.states
    for first, last in zip([0, *cuts], [*cuts, 23], strict=True):
        piece, continued = by_kernel(given._replace(states=continued).tokens(first, last), normalized=True)
        outputs.append(piece)
    torch.testing.assert_close(torch.cat(outputs, dim=1), whole, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(continued, states, rtol=1e-5, atol=1e-5)


@of_both_rules
@pytest.mark.parametrize("decay", [-100.0, -torch.inf, -88.0, -1e-9, 0.0])
def test_states_that_are_forgotten_or_kept(isa: str, decay: float, per_channel: bool) -> None:
    torch.manual_seed(2)
    sizes = Sizes(tokens=600, key_heads=1, key_dim=24, value_dim=24, per_channel=per_channel)
    given = problem(sizes, torch.float32, decay=0.0)
    given.decays[:, 300:] = decay
    given.decays[:, 450:] -= 0.1
    assert_close(by_kernel(given, normalized=True), by_definition(given, normalized=True))


def test_channels_are_forgotten_or_kept_by_themselves(isa: str) -> None:
    torch.manual_seed(8)
    given = problem(Sizes(rows=2, tokens=61, key_dim=70, value_dim=40, per_channel=True), torch.float32)
    some = torch.tensor([-100.0, -torch.inf, -50.0, -1e-9, 0.0, 0.0, 0.0, -0.1])
    given.decays.copy_(some[torch.randint(len(some), given.decays.shape)])
    assert_close(by_kernel(given, normalized=True), by_definition(given, normalized=True))


@pytest.mark.parametrize("tokens", [1, 8])
def test_channels_that_decay_alike_are_a_head_that_decays(isa: str, tokens: int) -> None:
    torch.manual_seed(9)
    given = problem(Sizes(rows=2, tokens=tokens, key_dim=40), torch.float32)
    alike = given._replace(decays=given.decays[..., None].expand(*given.decays.shape, 40))
    expected, found = by_kernel(given, normalized=True), by_kernel(alike, normalized=True)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@of_both_rules
def test_a_state_before_a_decay_to_nothing_changes_nothing(isa: str, per_channel: bool) -> None:
    torch.manual_seed(3)
    given = problem(Sizes(tokens=7, per_channel=per_channel), torch.bfloat16)
    given.decays[:, 3] = -torch.inf
    outputs, states = by_kernel(given, normalized=True)
    others, same = by_kernel(given._replace(states=5 * given.states), normalized=True)
    assert torch.equal(outputs[:, 3:], others[:, 3:])
    assert torch.equal(states, same)


@of_both_rules
@pytest.mark.parametrize("number", [torch.nan, torch.inf])
@pytest.mark.parametrize("tokens", [1, 6])
def test_what_is_not_a_number_stays_in_its_column_or_head(
    isa: str, number: float, tokens: int, per_channel: bool
) -> None:
    torch.manual_seed(4)
    given = problem(Sizes(rows=2, tokens=tokens, per_channel=per_channel), torch.float32)
    expected, _ = by_kernel(given, normalized=True)
    given.values[0, 0, 1, 5] = number
    given.keys[1, 0, 1, 3] = number  # of value heads 2 and 3
    found, _ = by_kernel(given, normalized=True)
    wrong = torch.zeros_like(found, dtype=torch.bool)
    wrong[0, :, 1, 5], wrong[1, :, 2:] = True, True
    assert torch.equal(found[~wrong], expected[~wrong])
    assert not found[0, :, 1, 5].isfinite().any()


@of_both_rules
@pytest.mark.parametrize("tokens", [0, 1, 100])
def test_the_number_of_threads_changes_nothing(threads: None, tokens: int, per_channel: bool) -> None:
    torch.manual_seed(5)
    given = problem(Sizes(tokens=tokens, key_heads=3, value_dim=100, per_channel=per_channel), torch.bfloat16)
    found = []
    for number in (1, 2, 3):
        torch.set_num_threads(number)
        found.append(by_kernel(given, normalized=True))
    for outputs, states in found[1:]:
        assert torch.equal(outputs, found[0][0])
        assert torch.equal(states, found[0][1])


@of_both_rules
def test_no_tokens_leave_states_alone(per_channel: bool) -> None:
    given = problem(Sizes(tokens=0, per_channel=per_channel), torch.float32)
    assert torch.equal(by_kernel(given, normalized=True)[1], given.states)


@of_both_rules
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tokens", [1, 70])
def test_it_is_what_transformers_computes(dtype: torch.dtype, tokens: int, per_channel: bool) -> None:
    torch.manual_seed(6)
    group = 1 if per_channel else 2
    given = problem(Sizes(2, tokens, 2, group, 64, 96, per_channel), dtype)
    own = KIMIS if per_channel else GATED
    outputs, last = own(*given, output_final_state=True, use_qk_l2norm_in_kernel=True)
    found, changed = by_kernel(given, normalized=True)
    tolerance = 2 * torch.finfo(dtype).eps if dtype != torch.float32 else 1e-5
    torch.testing.assert_close(found, outputs, rtol=tolerance, atol=1e-5)
    torch.testing.assert_close(changed, last, rtol=1e-4, atol=1e-5)


@of_both_rules
def test_a_recorded_step_is_done_again_on_other_numbers(per_channel: bool) -> None:
    torch.manual_seed(7)
    given, other = (problem(Sizes(rows=2, tokens=1, per_channel=per_channel), torch.bfloat16) for _ in range(2))
    held = given._replace(states=given.states.clone(), rates=given.rates.mT.contiguous().mT)
    layout = delta.layout_of(*held)
    assert layout is not None
    graph = HostGraph(lambda: delta.recur(*held, True, layout), torch.device("cpu"))
    graph.replay()
    expected, states = by_kernel(given, normalized=True)
    assert torch.equal(graph.output, expected)
    for each, fresh in zip(held[:5], other[:5], strict=True):
        each.copy_(fresh)
    graph.replay()
    expected, states = by_kernel(other._replace(states=states), normalized=True)
    assert torch.equal(graph.output, expected)
    assert torch.equal(held.states, states)


def refused() -> dict[str, Given]:
    """Tensors that the kernel does not read."""
    given, of_channels = (problem(Sizes(rows=2, per_channel=each), torch.float32) for each in (False, True))
    spread = torch.zeros(2, 5, 2, 32)[..., ::2]
    return {
        "three axes": given._replace(queries=given.queries[0]),
        "float64": given.double(),
        "keys of another dtype": given._replace(keys=given.keys.half()),
        "rates of another dtype": given._replace(rates=given.rates.half()),
        "decays in half precision": given._replace(decays=given.decays.half()),
        "states in half precision": given._replace(states=given.states.half()),
        "states with gaps": given._replace(states=given.states.mT.contiguous().mT),
        "states of other rows": given._replace(states=given.states[:1]),
        "keys of another width": given._replace(keys=given.keys[..., :8]),
        "values of other tokens": given._replace(values=given.values[:, :3]),
        "decays of other heads": given._replace(decays=given.decays[..., :3]),
        "decays of other channels": of_channels._replace(decays=of_channels.decays[..., :8]),
        "decays of channels of other heads": of_channels._replace(decays=of_channels.decays[:, :, :3]),
        "rates of other tokens": given._replace(rates=given.rates[:, :3]),
        "three value heads of two": Given(*given[:2], *(each[:, :, :3] for each in given[2:5]), given.states[:, :3]),
        "channels that are apart": given._replace(queries=spread),
        "heads that are apart": given._replace(keys=torch.zeros(2, 5, 4, 16)[:, :, ::2]),
        "no head": given._replace(queries=given.queries[:, :, :0], keys=given.keys[:, :, :0]),
        "a key too wide": problem(Sizes(key_dim=257), torch.float32),
        "another device": Given(*(each.to("meta") for each in given)),
    }


REFUSED = refused()


@pytest.mark.parametrize("case", REFUSED)
def test_what_the_kernel_does_not_read_is_told(case: str) -> None:
    assert delta.layout_of(*REFUSED[case]) is None
