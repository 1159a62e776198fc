"""Checkpoints in few bits of other kinds, which transformers writes out and `--weights` rounds as they are read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from support.families import prompt
from support.quantized_checkpoints import write_fp8, write_mxfp4
from support.sources import source_in
from winnow.models import load_model, weights_of
from winnow.models.quantized import QuantizedLinear
from winnow.models.quantized_experts import QuantizedExperts

pytestmark = pytest.mark.usefixtures("one_thread")
BITS = {"int8": 1 / 254, "int4": 1 / 30}
"""Half a step between two levels, in the distance from the least to the largest weight that share a scale."""


def weight_of(model: Any, name: str) -> Tensor:
    """The weight that a model computes with, under its name in the file."""
    path, _, last = name.rpartition(".")
    module = model.get_submodule(path)
    if isinstance(module, QuantizedExperts):
        layers: Any = module.leave if last == "down_proj" else module.enter
        return torch.stack([layer.weight.mT for layer in layers])
    found: Tensor = getattr(module, last)
    return found


@pytest.mark.parametrize("weights", BITS)
@pytest.mark.parametrize("write", [write_mxfp4, write_fp8])
def test_weights_are_those_of_the_file_within_half_a_step(
    write: Callable[[Path], dict[str, Tensor]], weights: str, tmp_path: Path
) -> None:
    meant = write(tmp_path)
    model = load_model(source_in(tmp_path), "cpu", weights=weights)
    assert weights_of(model) == weights
    assert any(isinstance(each, QuantizedLinear) for each in model.modules())
    for name, expected in meant.items():
        found = weight_of(model, name).double()
        step = BITS[weights] * float(expected.amax() - expected.amin())
        # Beside it bfloat16, in which weights are written out and scales stored.
        assert float((found - expected).abs().max()) < 1.02 * step + 2**-7 * float(expected.abs().max()), name
    with torch.no_grad():
        assert bool(model(prompt(1, 9)).logits.isfinite().all())


@pytest.mark.parametrize("write", [write_mxfp4, write_fp8])
def test_they_are_written_out_without_the_option(write: Callable[[Path], dict[str, Tensor]], tmp_path: Path) -> None:
    meant = write(tmp_path)
    model = load_model(source_in(tmp_path), "cpu", "bfloat16")
    assert weights_of(model) is None
    for name, expected in meant.items():
        torch.testing.assert_close(weight_of(model, name).double(), expected, rtol=2**-7, atol=0)
