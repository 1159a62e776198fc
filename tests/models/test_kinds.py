"""Kinds of models that are refused before weights are read."""

from __future__ import annotations

import pytest
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

from winnow.errors import ModelError
from winnow.models.kinds import check_compressible, loader_of


def test_a_model_that_counts_cached_tokens_in_the_middle_of_a_pass_is_refused():
    with pytest.raises(ModelError, match=r"Idefics \(idefics\) asks its cache how many tokens.*use its own cache"):
        check_compressible(AutoConfig.for_model("idefics"), "Idefics")


def test_its_successors_are_not():
    for name in ("idefics2", "idefics3"):
        check_compressible(AutoConfig.for_model(name), name)


@pytest.mark.parametrize("family", ["bart", "marian", "whisper"])
def test_decoders_of_encoder_decoders_are_refused_though_their_configurations_deny_it(family):
    config = AutoConfig.for_model(family, is_encoder_decoder=False, is_decoder=True)
    with pytest.raises(ModelError, match=f"a model is an encoder-decoder model .{family}."):
        check_compressible(config, "a model")


@pytest.mark.parametrize("family", ["rwkv", "xlstm"])
def test_states_without_attention_are_refused_by_name(family):
    with pytest.raises(ModelError, match="has only recurrent states and no full-attention layer"):
        check_compressible(AutoConfig.for_model(family), "a model")


def test_layers_that_choose_tokens_by_an_index_are_told_by_their_type():
    config = AutoConfig.for_model("llama", num_hidden_layers=2)
    config.layer_types = ["linear_attention", "indexed_attention"]  # as Qwen4's have
    with pytest.raises(ModelError, match="by an index of its own"):
        check_compressible(config, "a model")


@pytest.mark.parametrize("family", ["blip-2", "instructblip", "instructblipvideo", "kosmos-2"])
def test_models_that_read_no_text_alone_are_refused(family):
    with pytest.raises(ModelError, match="needs an image in every prompt"):
        check_compressible(AutoConfig.for_model(family), "a model")


def test_the_text_part_of_a_model_decides():
    with pytest.raises(ModelError, match="mllama_text_model"):
        check_compressible(AutoConfig.for_model("mllama"), "a model")


def test_models_for_text_and_images_are_loaded_for_text_alone_where_they_can_be():
    assert loader_of(AutoConfig.for_model("qwen3_5")) is AutoModelForCausalLM
    assert loader_of(AutoConfig.for_model("llava")) is AutoModelForImageTextToText
    with pytest.raises(ModelError, match="clip is no causal language model"):
        loader_of(AutoConfig.for_model("clip"))
