"""Attention that is shown step by step: every full-attention layer, and no other."""

from __future__ import annotations

import pytest
import torch

from support.families import build
from support.needles import BUNDLED, small_plan
from winnow.estimate.errors import NeedleError
from winnow.estimate.needle import capture
from winnow.estimate.needle.capture import full_layers, step_weights
from winnow.estimate.needle.generate import answer
from winnow.estimate.needle.scoring import MassTally
from winnow.estimate.needle.settings import NeedleKind
from winnow.estimate.shape import table_shape
from winnow.kernels.interface import AttentionSpec

pytestmark = pytest.mark.usefixtures("one_thread")


def test_a_layer_that_shows_nothing_is_an_error(model):
    plan = small_plan(NeedleKind.ER, (0,), depths=1)
    prompt = plan.job(plan.places[0]).prompt
    with pytest.raises(NeedleError, match="Only 4 of 5 full-attention layers"):
        answer(model, BUNDLED.tokenizer, prompt, MassTally(prompt, 5), 4)


def test_heads_of_hybrid_models_are_counted_over_full_layers_only():
    model = build("gemma3_text")
    assert full_layers(model) == {1: 0, 3: 1}
    assert table_shape(model) == (2, 2)


def test_logits_of_16_bits_are_added_up_in_32(monkeypatch):
    """Two positions whose logits differ by less than 16 bits can tell: the highest one is that of exact products."""
    monkeypatch.setattr(capture, "_AT_ONCE", 300)
    generator = torch.Generator().manual_seed(7)
    query = torch.randn(640, 128, generator=generator).bfloat16()
    key = torch.randn(80, 1000, 128, generator=generator).bfloat16()
    spec = AttentionSpec(128**-0.5, None, None)
    exact = (query.double().unflatten(0, (80, -1)) @ key.double().mT).flatten(0, 1)
    found = step_weights(query, key, None, spec)
    assert found.dtype == torch.float32
    assert torch.equal(found.argmax(dim=-1), exact.argmax(dim=-1))
    torch.testing.assert_close(found.double(), (exact * spec.scaling).softmax(dim=-1), rtol=1e-4, atol=1e-9)
    rounded = (query.unflatten(0, (80, -1)) @ key.mT).flatten(0, 1)
    assert (rounded.argmax(dim=-1) != exact.argmax(dim=-1)).sum() >= 10
