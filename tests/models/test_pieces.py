"""Models of which rows depend on longer ones beside them, and prompts on the pieces that they come in."""

from __future__ import annotations

import pytest
from transformers import AutoConfig

from support.families import LONGROPE, build
from winnow.models.pieces import reads_in_pieces, rotates_by_length

DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}


@pytest.mark.parametrize(("parameters", "expected"), [(LONGROPE, True), (DYNAMIC, True), (LINEAR, False)])
def test_which_frequencies_depend_on_the_length(parameters, expected):
    assert rotates_by_length(build("llama", rope_parameters=parameters).config) == expected


def test_most_do_not():
    assert not rotates_by_length(build("llama").config)


def test_one_type_of_layers_is_enough():
    config = build("llama").config
    config.rope_parameters = {"sliding_attention": LINEAR, "full_attention": LINEAR}
    assert not rotates_by_length(config)
    config.rope_parameters = {"sliding_attention": LINEAR, "full_attention": DYNAMIC}
    assert rotates_by_length(config)


def test_kinds_of_frequencies_are_told_as_transformers_tells_them():
    """By "dynamic" anywhere in the name, of a model's text part, where there are any."""
    config = AutoConfig.for_model("llava")
    assert not rotates_by_length(config)
    config.text_config.rope_parameters = DYNAMIC | {"rope_type": "dynamic-ntk"}
    assert rotates_by_length(config)
    config.text_config.rope_parameters = None
    assert not rotates_by_length(config)


@pytest.mark.parametrize(
    ("family", "options", "expected"),
    [("llama", {}, True), ("jamba", {}, False), ("zamba", {}, False), ("llama", {"rope_parameters": LONGROPE}, False)],
)
def test_prompts_that_may_come_in_pieces(family, options, expected):
    assert reads_in_pieces(AutoConfig.for_model(family, **options)) == expected
