"""Attention that is shown step by step: every full-attention layer, and no other."""

from __future__ import annotations

import pytest

from support.families import build
from support.needles import BUNDLED, small_plan
from winnow.estimate.errors import NeedleError
from winnow.estimate.needle.capture import full_layers
from winnow.estimate.needle.generate import answer
from winnow.estimate.needle.scoring import MassTally
from winnow.estimate.needle.settings import NeedleKind
from winnow.estimate.shape import table_shape

pytestmark = pytest.mark.usefixtures("one_thread")


def test_a_layer_that_shows_nothing_is_an_error(model):
    prompt = next(small_plan(NeedleKind.ER, (0,), depths=1).jobs()).prompt
    with pytest.raises(NeedleError, match="Only 4 of 5 full-attention layers"):
        answer(model, BUNDLED.tokenizer, prompt, MassTally(prompt, 5), 4)


def test_heads_of_hybrid_models_are_counted_over_full_layers_only():
    model = build("gemma3_text")
    assert full_layers(model) == {1: 0, 3: 1}
    assert table_shape(model) == (2, 2)
