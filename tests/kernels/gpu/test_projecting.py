"""Sizes of what values add to the output in Triton against float64, under the interpreter or on a GPU."""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from support.gpu import DEVICE
from support.views import random_view
from winnow.kernels.gpu import support
from winnow.kernels.gpu.projecting import output_sizes
from winnow.score import Critical, Knorm, critical
from winnow.score.output_norms import output_norms

pytestmark = pytest.mark.usefixtures("one_thread")


def expected(values: torch.Tensor, matrices: torch.Tensor, squared: bool) -> torch.Tensor:
    """The definition, a query head at a time."""
    group = len(matrices) // len(values)
    products = torch.stack([values[head // group].double() @ each.double() for head, each in enumerate(matrices)])
    return products.square().sum(dim=-1) if squared else products.abs().sum(dim=-1)


@pytest.mark.parametrize("squared", [False, True])
@pytest.mark.parametrize(
    ("dtypes", "dim"),
    [
        ((torch.float32, torch.float32), 24),
        ((torch.float16, torch.float16), 64),
        ((torch.bfloat16, torch.bfloat16), 144),
        ((torch.bfloat16, torch.float32), 8),
    ],
)
def test_sizes_match_the_definition(dtypes: tuple[torch.dtype, torch.dtype], dim: int, squared: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(90, 2, dim, generator=generator).to(dtypes[0]).transpose(0, 1)
    # as nn.Linear keeps it: [E, Hq·Dv]
    weight = torch.randn(150, 6 * dim, generator=generator).to(dtypes[1])
    matrices = weight.t().unflatten(0, (6, dim))
    found = output_sizes(values.to(DEVICE), matrices.to(DEVICE), squared).cpu().double()
    torch.testing.assert_close(found, expected(values, matrices, squared), rtol=2e-5, atol=1e-7)


@settings(max_examples=4, deadline=None)
@given(st.integers(0, 150), st.integers(1, 3), st.integers(1, 3), st.integers(1, 40), st.integers(1, 90))
@example(90, 2, 2, 38, 1)
def test_any_shape(tokens: int, heads: int, group: int, dim: int, outputs: int) -> None:
    generator = torch.Generator().manual_seed(tokens)
    values = torch.randn(heads, tokens, dim, generator=generator)
    matrices = torch.randn(heads * group, dim, outputs, generator=generator)
    found = output_sizes(values.to(DEVICE), matrices.to(DEVICE), False).cpu().double()
    # Of a single output, products may cancel each other: fp32 rounds by what they are, not by what is left of them.
    error = (found - expected(values, matrices, False)).abs()
    assert (error <= 2.0**-22 * expected(values.abs(), matrices.abs(), False)).all()


@pytest.mark.parametrize("slots", [[9, 30], [70, 3]], ids=str)
def test_scorers_find_what_they_find_on_the_cpu(slots: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    view = random_view(length=130, dtype=torch.float16)
    scorer, wanted = Critical(base=Knorm()), torch.tensor(slots)
    norms, scores = critical.projected_norms(view), scorer.refine(scorer.rank(view), wanted, view)
    longer = output_norms(view, slice(3, 50))
    monkeypatch.setattr(support, "serves", lambda rows: True)
    there = {name: each.to(DEVICE) for name, each in view._asdict().items() if isinstance(each, torch.Tensor)}
    view = view._replace(**there)
    torch.testing.assert_close(critical.projected_norms(view).cpu(), norms, rtol=2e-5, atol=1e-7)
    torch.testing.assert_close(output_norms(view, slice(3, 50)).cpu(), longer, rtol=2e-5, atol=1e-7)
    found = scorer.refine(scorer.rank(view), wanted.to(DEVICE), view)
    best = [row.topk(count).indices.sort().values for row, count in zip(scores, slots, strict=True)]
    for row, count, mine in zip(found.cpu(), slots, best, strict=True):
        assert torch.equal(row.topk(count).indices.sort().values, mine)
