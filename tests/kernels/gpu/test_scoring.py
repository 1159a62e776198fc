"""Sums of a window's attention in Triton against its definition in float64, under the interpreter or on a GPU."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from support.gpu import DEVICE
from support.views import random_view
from winnow.kernels.gpu import scoring
from winnow.kernels.gpu.scoring import Asked, attention_paid
from winnow.score import window as torch_form
from winnow.view import LayerView

pytestmark = pytest.mark.usefixtures("one_thread")
CASES: list[tuple[torch.dtype, dict[str, float]]] = [
    (torch.float32, {}),
    (torch.float32, {"sinks": True, "dim": 24}),
    (torch.float32, {"group": 5, "dim": 144}),
    (torch.float16, {"softcap": 3.0, "group": 3}),
    (torch.bfloat16, {"group": 1, "dim": 40}),
]


def paid(view: LayerView, window: int, visible: int, keys: int) -> Tensor:
    """Sums that Triton finds."""
    queries = view.queries[:, view.queries.shape[1] - window :]
    there = [None if each is None else each.to(DEVICE) for each in (queries, view.keys, view.sinks, view.absent)]
    asked = Asked(there[0], there[1], view.scaling, view.softcap, there[2], there[3], visible)
    return attention_paid(asked, keys).cpu()


def expected(view: LayerView, window: int, visible: int, keys: int) -> Tensor:
    """The same by the definition, a query at a time."""
    heads, length, _ = view.keys.shape
    group = view.queries.shape[0] // heads
    result = torch.zeros(heads, group, keys, dtype=torch.float64)
    for head in range(heads):
        for member in range(group):
            for token in range(length - window, length):
                query = view.queries[head * group + member, token - length].double()
                logits = view.keys[head].double() @ query * view.scaling
                if view.softcap is not None:
                    logits = view.softcap * (logits / view.softcap).tanh()
                seen = torch.arange(length) < min(visible, token + 1)
                if view.absent is not None:
                    seen &= ~view.absent[head]
                weights = torch.where(seen, logits.exp(), 0.0)
                sink = 0.0 if view.sinks is None else view.sinks[head * group + member].double().exp()
                result[head, member] += (weights / (weights.sum() + sink))[:keys]
    return result


@pytest.mark.parametrize(("dtype", "facts"), CASES, ids=str)
def test_sums_match_the_definition(dtype: torch.dtype, facts: dict[str, float]) -> None:
    view = random_view(length=80, dtype=dtype, **facts)
    for visible in (80, 68):
        found = paid(view, 12, visible, 68)
        torch.testing.assert_close(found.double(), expected(view, 12, visible, 68), rtol=2e-5, atol=1e-7)


def test_queries_of_more_bits_than_keys_keep_them() -> None:
    view = random_view(length=90, dtype=torch.bfloat16)
    view = view._replace(queries=view.queries.float() * 1.0003)
    torch.testing.assert_close(paid(view, 8, 90, 90).double(), expected(view, 8, 90, 90), rtol=2e-5, atol=1e-7)


@settings(max_examples=4, deadline=None)
@given(length=st.integers(1, 90), window=st.integers(1, 90), group=st.integers(1, 5), seed=st.integers(0, 9))
def test_any_shape_with_absent_columns(length: int, window: int, group: int, seed: int) -> None:
    view, window = random_view(length=length, group=group, heads=2, seed=seed), min(window, length)
    absent = torch.rand(2, length, generator=torch.Generator().manual_seed(seed)) < 0.3
    absent[:, length - window :] = False
    view = view._replace(absent=absent)
    found = paid(view, window, length, length)
    torch.testing.assert_close(found.double(), expected(view, window, length, length), rtol=2e-5, atol=1e-7)


def test_rows_of_other_strides_are_read_where_they_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoring, "SMALLEST_CHUNK", 64)  # several chunks
    view = random_view(length=300)
    spread = view._replace(keys=view.keys.transpose(0, 1).contiguous().transpose(0, 1))
    assert torch.equal(paid(view, 8, 300, 292), paid(spread, 8, 300, 292))


def test_scorers_ask_triton_where_it_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    view = random_view(length=120, dtype=torch.float16)
    mine = [
        torch_form.window_mass(view, 8, "visible"),
        torch_form.window_mass(view, 8, "prefix"),
        torch_form.attention_mass(view, 20),
    ]
    monkeypatch.setattr(torch_form.gpu, "serves", lambda rows: True)
    view = view._replace(queries=view.queries.to(DEVICE), keys=view.keys.to(DEVICE))
    found = [
        torch_form.window_mass(view, 8, "visible"),
        torch_form.window_mass(view, 8, "prefix"),
        torch_form.attention_mass(view, 20),
    ]
    for here, there in zip(mine, found, strict=True):
        torch.testing.assert_close(there.cpu(), here, rtol=2e-5, atol=1e-6)
