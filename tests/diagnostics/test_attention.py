"""Attention of what was kept: mass and error, against float64 forms, in memory linear in the prompt."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from support.diagnosis_oracle import oracle_error, oracle_mass
from support.largest_tensor import LargestTensor
from support.views import random_view
from winnow.diagnostics.attention import kept_attention


@pytest.mark.parametrize("model", [{}, {"softcap": 1.5}, {"sinks": True}, {"softcap": 2.0, "sinks": True}], ids=str)
@pytest.mark.parametrize(("heads", "group", "length"), [(1, 1, 1), (2, 3, 9), (3, 2, 50)])
def test_attention_over_random_masks(model, heads, group, length):
    view = random_view(heads=heads, group=group, length=length, **model)
    layer = {name: getattr(view, name).double().numpy() for name in ("queries", "keys", "values")}
    layer |= {"scaling": view.scaling, "softcap": view.softcap}
    layer["sinks"] = None if view.sinks is None else view.sinks.double().numpy()
    mask = torch.rand(heads, length, generator=torch.Generator().manual_seed(1)) < 0.3
    mask[-1] = False  # a head without slots
    kept = [row.nonzero().flatten().tolist() for row in mask]
    found = kept_attention(view, mask, 7)
    np.testing.assert_allclose(found.mass, oracle_mass(layer, kept, 7), atol=1e-6)
    assert found.error == pytest.approx(oracle_error(layer, kept, 7), abs=1e-5)


@pytest.mark.parametrize("sinks", [False, True])
def test_what_is_kept_may_have_been_next_to_nothing(sinks):
    """Its logits are far below those of the rest, whose part of the whole no fp32 holds."""
    view = random_view(heads=2, group=2, length=30, sinks=sinks)
    view.keys[:, 0] = 400 * view.queries.view(2, 2, -1, view.keys.shape[-1]).mean(dim=(1, 2))
    layer = {name: getattr(view, name).double().numpy() for name in ("queries", "keys", "values")}
    layer |= {"scaling": view.scaling, "softcap": None}
    layer["sinks"] = None if view.sinks is None else view.sinks.double().numpy()
    mask = torch.zeros(2, 30, dtype=torch.bool)
    mask[:, 3:9] = True
    kept = [row.nonzero().flatten().tolist() for row in mask]
    assert kept_attention(view, mask, 7).error == pytest.approx(oracle_error(layer, kept, 7), abs=1e-5)


@pytest.mark.parametrize("model", [{}, {"softcap": 1.5, "sinks": True}], ids=str)
def test_error_of_packed_slots(model):
    """The mass is that of the selection; the error includes what comes back from the packed form."""
    view = random_view(heads=2, group=2, length=20, **model)
    noise = torch.Generator().manual_seed(2)
    packed = view._replace(
        keys=view.keys + 0.3 * torch.randn(view.keys.shape, generator=noise),
        values=view.values + 0.3 * torch.randn(view.values.shape, generator=noise),
    )
    layers = [
        {name: getattr(each, name).double().numpy() for name in ("queries", "keys", "values")}
        | {"scaling": view.scaling, "softcap": view.softcap}
        | {"sinks": None if view.sinks is None else view.sinks.double().numpy()}
        for each in (view, packed)
    ]
    mask = torch.rand(2, 20, generator=torch.Generator().manual_seed(1)) < 0.5
    kept = [row.nonzero().flatten().tolist() for row in mask]
    found = kept_attention(view, mask, 7, packed)
    np.testing.assert_allclose(found.mass, oracle_mass(layers[0], kept, 7), atol=1e-6)
    assert found.error == pytest.approx(oracle_error(layers[0], kept, 7, layers[1]), abs=1e-5)


def test_blocks_do_not_change_attention(monkeypatch):
    view = random_view(heads=2, group=2, length=37, sinks=True)
    mask = torch.rand(2, 37, generator=torch.Generator().manual_seed(1)) < 0.3
    whole = kept_attention(view, mask, 30)
    monkeypatch.setattr("winnow.score.window._MOST_ROWS", 5)
    parts = kept_attention(view, mask, 30)
    torch.testing.assert_close(parts.mass, whole.mass)
    assert parts.error == pytest.approx(whole.error, rel=1e-5)


def test_attention_that_goes_to_sinks_alone_loses_nothing():
    view = random_view(heads=1, group=1, length=5, sinks=True)
    drained = view._replace(sinks=torch.full((1,), 1e4))
    found = kept_attention(drained, torch.zeros(1, 5, dtype=torch.bool), 5)
    assert (found.mass.tolist(), found.error) == ([1.0], 0.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_memory_of_the_attention_is_linear_in_the_prompt(small_blocks, dtype):
    length = 600
    view = random_view(heads=2, group=2, length=length, sinks=True, softcap=3.0, dtype=dtype)
    with LargestTensor() as mode:
        kept_attention(view, torch.ones(2, length, dtype=torch.bool), length)
    assert mode.elements <= 4 * 16 * length
