"""A model that attends with winnow for a while, and then as before."""

from __future__ import annotations

import pytest

from support.families import build, build_any
from winnow.cache.attending import attending


@pytest.mark.parametrize("before", ["eager", "sdpa", "winnow"])
def test_what_was_set_is_set_again(before):
    model = build("llama", num_hidden_layers=1)
    model.set_attn_implementation(before)
    with attending(model):
        assert model.config._attn_implementation == "winnow"
    assert model.config._attn_implementation == before


def test_it_is_set_again_after_an_error():
    model = build("llama", num_hidden_layers=1)
    model.set_attn_implementation("eager")
    with pytest.raises(KeyboardInterrupt), attending(model):
        raise KeyboardInterrupt
    assert model.config._attn_implementation == "eager"


def test_the_last_of_several_sets_it_again():
    """As threads come and go."""
    model = build("llama", num_hidden_layers=1)
    model.set_attn_implementation("sdpa")
    first, second = attending(model), attending(model)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert model.config._attn_implementation == "winnow"
    with attending(model):
        second.__exit__(None, None, None)
        assert model.config._attn_implementation == "winnow"
    assert model.config._attn_implementation == "sdpa"


def test_models_inside_a_model_get_their_own_again():
    model = build_any("gemma3")
    model.set_attn_implementation({"": "sdpa", "text_config": "eager", "vision_config": "sdpa"})
    with attending(model):
        assert model.config.text_config._attn_implementation == "winnow"
    parts = (model.config, model.config.text_config, model.config.vision_config)
    assert [part._attn_implementation for part in parts] == ["sdpa", "eager", "sdpa"]
