"""Rotary embedding by the compiled kernel, in every instruction set, against float64 and against torch's operators."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from support.dense_attention import DTYPES
from support.instruction_sets import needs_native
from winnow.kernels import native, rotary
from winnow.kernels.rotary import COMPLEX, HALVES, INTERLEAVED, Turning

pytestmark = needs_native
SHARED = [HealthCheck.function_scoped_fixture]
OF_NEIGHBORS = (
    *(st.integers(0, 3), st.integers(1, 5), st.integers(0, 40)),
    st.sampled_from([1, 3, 4, 7, 8, 9, 12, 15, 16, 17, 20, 24, 31, 32, 40]),
    *(st.integers(0, 40) | st.just(0), st.sampled_from(DTYPES), st.booleans(), st.integers(0, 99)),
)
"""Rows, heads, tokens, points, channels that stay, dtypes, whether rows share angles, and seeds."""


def turned(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """[R, H, N, D] by the definition: each pair of channels is a point that a matrix turns.

    cos and sin: [R, N, D], or [R, N, D/2] that are alike for both channels of a pair.
    """
    half = heads.shape[-1] // 2
    cos, sin = (each if each.shape[-1] == 2 * half else torch.cat([each, each], -1) for each in (cos, sin))
    found = torch.empty_like(heads)
    for i in range(half):
        x, y = heads[..., i], heads[..., i + half]
        found[..., i] = x * cos[:, None, :, i] - y * sin[:, None, :, i]
        found[..., i + half] = y * cos[:, None, :, i + half] + x * sin[:, None, :, i + half]
    return found


def by_operators(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The same as models compute it, in the dtype."""
    cos, sin = (each if each.shape[-1] == heads.shape[-1] else torch.cat([each, each], -1) for each in (cos, sin))
    x, y = heads.chunk(2, dim=-1)
    return heads * cos[:, None] + torch.cat([-y, x], dim=-1) * sin[:, None]


def by_kernel(
    queries: Tensor, keys: Tensor, cos: Tensor, sin: Tensor, turning: Turning = HALVES
) -> tuple[Tensor, Tensor]:
    """Both, turned by the kernel, which reads them."""
    layout = rotary.layout_of(queries, keys, cos, sin, turning)
    assert layout is not None
    return rotary.turn(queries, keys, cos, sin, layout)


def as_projected(rows: int, heads: int, tokens: int, dim: int, dtype: torch.dtype) -> Tensor:
    """[R, H, N, D] as it lies after a projection."""
    return torch.randn(rows, tokens, heads, dim).to(dtype).transpose(1, 2)


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=SHARED)
@given(
    st.integers(0, 3),
    st.integers(1, 5),
    st.integers(1, 3),
    st.integers(0, 40),
    st.sampled_from([1, 3, 8, 15, 16, 17, 32, 40, 64]),
    st.integers(0, 40) | st.just(0),
    st.sampled_from(DTYPES),
    st.booleans(),
    st.booleans(),
    st.integers(0, 99),
)
def test_heads_of_any_shape_are_turned(
    isas: list[str],
    rows: int,
    heads: int,
    kv_heads: int,
    tokens: int,
    half: int,
    rest: int,
    dtype,
    shared: bool,
    halved: bool,
    seed: int,
) -> None:
    torch.manual_seed(seed)
    queries, keys = (as_projected(rows, each, tokens, 2 * half + rest, dtype) for each in (heads, kv_heads))
    cos, sin = torch.randn(2, 1 if shared else rows, tokens, half if halved else 2 * half).to(dtype)
    for isa in isas:
        native.select_isa(isa)
        found_all = by_kernel(queries, keys, cos, sin, Turning(share=2 if halved else 1))
        for every, given_all in zip(found_all, (queries, keys), strict=True):
            assert every.dtype == dtype
            assert every.stride() == given_all.stride()
            assert torch.equal(every[..., 2 * half :], given_all[..., 2 * half :])
            found, given_heads = every[..., : 2 * half], given_all[..., : 2 * half]
            exact = turned(given_heads.double(), cos.double(), sin.double())
            # Two products are rounded, and their sum.
            sizes = turned(given_heads.double().abs(), cos.double().abs(), -sin.double().abs())
            bound = sizes.maximum(turned(given_heads.double().abs(), cos.double().abs(), sin.double().abs()))
            assert bool(((found.double() - exact).abs() <= 1.5 * torch.finfo(dtype).eps * bound + 1e-6).all()), isa
            if dtype != torch.float32:
                assert torch.equal(found, by_operators(given_heads, cos, sin)), isa


def as_latents(rows: int, heads: int, tokens: int, dim: int, dtype: torch.dtype) -> Tensor:
    """[R, H, N, D] as it lies at the end of each head of a wider projection."""
    return torch.randn(rows, tokens, heads, 5 + dim).to(dtype).transpose(1, 2)[..., 5:]


def turned_neighbors(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """[R, H, N, D] by the definition: neighbors are a complex number, times one of the first angles [R, N, D/2]."""
    points = torch.view_as_complex(heads.unflatten(-1, (-1, 2)).contiguous()) * torch.complex(cos, sin)[:, None]
    return torch.cat([points.real, points.imag], -1)


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=SHARED)
@given(*OF_NEIGHBORS)
def test_neighbors_are_turned(
    isas: list[str], rows: int, heads: int, tokens: int, half: int, rest: int, dtype, shared: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    queries, keys = (as_latents(rows, each, tokens, 2 * half + rest, dtype) for each in (heads, 1))
    cos, sin = torch.randn(2, 1 if shared else rows, tokens, 2 * half).to(dtype)
    first_cos, first_sin = cos[..., :half], sin[..., :half]
    for isa in isas:
        native.select_isa(isa)
        found_all = by_kernel(queries, keys, cos, sin, INTERLEAVED)
        for every, given_all in zip(found_all, (queries, keys), strict=True):
            assert torch.equal(every[..., 2 * half :], given_all[..., 2 * half :])
            found, points = every[..., : 2 * half], given_all[..., : 2 * half]
            exact = turned_neighbors(points.double(), first_cos.double(), first_sin.double())
            # A point's length times its angle's is at least the sum of both products' sizes, which are rounded.
            lengths = points.double().unflatten(-1, (-1, 2)).norm(dim=-1) * torch.hypot(first_cos, first_sin)[:, None]
            bound = 1.5 * torch.finfo(dtype).eps * torch.cat([lengths, lengths], -1) + 1e-6
            assert bool(((found.double() - exact).abs() <= bound).all()), isa
            if dtype != torch.float32:
                sorted_out = torch.cat([points[..., ::2], points[..., 1::2]], -1)
                assert torch.equal(found, by_operators(sorted_out, first_cos, first_sin)), isa


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=SHARED)
@given(*OF_NEIGHBORS)
def test_complex_numbers_are_multiplied(
    isas: list[str], rows: int, heads: int, tokens: int, half: int, rest: int, dtype, shared: bool, seed: int
) -> None:
    """Neighbors stay neighbors, and are rounded once."""
    torch.manual_seed(seed)
    queries, keys = (as_latents(rows, each, tokens, 2 * half + rest, dtype) for each in (heads, 1))
    angles = torch.randn(1 if shared else rows, tokens, half, 2)
    read = angles.flatten(-2)
    for isa in isas:
        native.select_isa(isa)
        for every, given_all in zip(by_kernel(queries, keys, read, read, COMPLEX), (queries, keys), strict=True):
            assert torch.equal(every[..., 2 * half :], given_all[..., 2 * half :])
            found, points = (
                every[..., : 2 * half],
                given_all[..., : 2 * half].double().unflatten(-1, (-1, 2)).contiguous(),
            )
            numbers = torch.view_as_complex(points) * torch.view_as_complex(angles.double())[:, None]
            exact = torch.view_as_real(numbers).flatten(-2)
            lengths = numbers.abs().repeat_interleave(2, dim=-1)
            bound = 0.51 * torch.finfo(dtype).eps * exact.abs() + 2e-7 * lengths + 1e-7
            assert bool(((found.double() - exact).abs() <= bound).all()), isa


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_prompt_on_any_number_of_threads(threads: int) -> None:
    queries, keys = as_projected(1, 14, 700, 64, torch.bfloat16), as_projected(1, 2, 700, 64, torch.bfloat16)
    cos, sin = torch.randn(2, 1, 700, 64).bfloat16()
    used = torch.get_num_threads()
    torch.set_num_threads(threads)
    found = by_kernel(queries, keys, cos, sin)
    torch.set_num_threads(used)
    for one, heads in zip(found, (queries, keys), strict=True):
        assert torch.equal(one, by_operators(heads, cos, sin))


def test_what_is_not_a_number_stays_in_its_pair() -> None:
    queries, keys = as_projected(1, 2, 3, 8, torch.float32), as_projected(1, 1, 3, 8, torch.float32)
    queries[0, 1, 2, 5] = torch.nan
    found, _ = by_kernel(queries, keys, *torch.randn(2, 1, 3, 8))
    expected = torch.zeros(1, 2, 3, 8, dtype=torch.bool)
    expected[0, 1, 2, [1, 5]] = True
    assert torch.equal(found.isnan(), expected)
    found, _ = by_kernel(queries, keys, *torch.randn(2, 1, 3, 8), INTERLEAVED)
    assert torch.equal(found.isnan(), expected[..., [0, 2, 1, 3, 4, 6, 5, 7]])


HEADS = as_projected(2, 3, 4, 8, torch.float32)
ANGLES = torch.ones(2, 4, 8)
REFUSED = {
    "three dimensions": (HEADS[0], HEADS, ANGLES, ANGLES),
    "a dtype that kernels do not know": (HEADS.double(), HEADS.double(), ANGLES.double(), ANGLES.double()),
    "keys of another dtype": (HEADS, HEADS.half(), ANGLES, ANGLES),
    "angles of another dtype": (HEADS, HEADS, ANGLES.half(), ANGLES.half()),
    "angles of an odd number of channels": (HEADS, HEADS, ANGLES[..., :3].contiguous(), ANGLES[..., :3].contiguous()),
    "angles of more channels": (HEADS, HEADS, torch.ones(2, 4, 10), torch.ones(2, 4, 10)),
    "no angles": (HEADS, HEADS, ANGLES[..., :0].contiguous(), ANGLES[..., :0].contiguous()),
    "angles of other rows": (HEADS, HEADS, torch.ones(3, 4, 8), torch.ones(3, 4, 8)),
    "a cosine without its sine": (HEADS, HEADS, ANGLES, ANGLES[:1]),
    "angles with gaps": (HEADS, HEADS, torch.ones(2, 4, 16)[..., ::2], torch.ones(2, 4, 16)[..., ::2]),
    "keys of other tokens": (HEADS, HEADS[:, :, :3], ANGLES, ANGLES),
    "channels that are apart": (HEADS.mT.contiguous().mT, HEADS, ANGLES, ANGLES),
    "an odd channel": (HEADS[..., :7], HEADS[..., :7], ANGLES[..., :7].contiguous(), ANGLES[..., :7].contiguous()),
    "no head": (HEADS[:, :0], HEADS, ANGLES, ANGLES),
    "another device": tuple(each.to("meta") for each in (HEADS, HEADS, ANGLES, ANGLES)),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_the_kernel_does_not_read_is_told(case: str) -> None:
    assert rotary.layout_of(*REFUSED[case]) is None
