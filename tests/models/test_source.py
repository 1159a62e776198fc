"""Models by name: what is refused before, or instead of, loading weights."""

from __future__ import annotations

import io
import json
import shutil

import pytest
import torch
from transformers import AutoModelForCausalLM, BertConfig, MambaConfig

import winnow
from support.families import prompt, vision_models
from support.plain_layers import load_plain
from winnow.bundled import MODEL_PATH, NAME
from winnow.errors import CacheError, ModelError
from winnow.evaluate.checking import check_shapes
from winnow.models import load_model, open_model, open_skeleton, skeleton_in

FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors")


@pytest.fixture
def directory(tmp_path):
    """A copy of the bundled model."""
    for name in FILES:
        shutil.copy(MODEL_PATH / name, tmp_path)
    return tmp_path


def test_a_directory(directory):
    assert load_model(open_model(directory), "cpu").config.model_type


def test_the_bundled_model_has_a_name():
    assert open_model(NAME).name == str(MODEL_PATH)


def test_code_of_a_model_is_never_run(directory, monkeypatch):
    """transformers asked for it on standard input, where the next line of a pipe could be "y"."""
    config = json.loads((directory / "config.json").read_text())
    config |= {"model_type": "mine", "auto_map": {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}}
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "own.py").write_text("raise AssertionError('this ran')\n")
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    with pytest.raises(ModelError, match=r"Cannot load the configuration of .* contains custom code") as caught:
        open_model(directory)
    assert "\n" not in str(caught.value)


def test_weights_that_are_not_there_are_named(directory):
    """Random ones took their place, without a word."""
    from safetensors.torch import load_file, save_file

    weights = load_file(directory / "model.safetensors")
    gone = next(name for name in weights if "k_proj" in name)
    del weights[gone]
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=f"has no weights for {gone}, which would be random"):
        load_model(open_model(directory))


@pytest.mark.parametrize("name", ["nul\0byte", "half\ud800", "~nobody/model/x", "n" * 5000, "./" + "n" * 300])
def test_names_that_no_model_can_have(name, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ModelError) as caught:
        open_model(name)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("family", vision_models())
def test_image_text_models_are_loaded_for_text(family, directory):
    made = vision_models()[family]()
    made.save_pretrained(directory)
    source = open_model(directory)
    loaded, plain = load_model(source, "cpu"), load_plain(source)
    assert type(loaded) is type(open_skeleton(source)) is type(skeleton_in(directory)) is type(made)
    ids = prompt(length=40)
    made.set_attn_implementation("winnow")
    with torch.no_grad():
        found, same, expected = (
            model(ids, past_key_values=winnow.CompressedCache(model, "snapkv @ 8"), use_cache=True).logits
            for model in (loaded, plain, made)
        )
    assert torch.equal(same, expected)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl"])
def test_rotations_of_several_axes_are_not_undone(family):
    model = vision_models()[family]()
    model.set_attn_implementation("winnow")
    with pytest.raises(ModelError, match="rotates queries by positions on several axes"):
        winnow.CompressedCache(model, "expectedattention @ 8")


REFUSED = {
    "bert": "BertModel, which cannot generate text",
    "siglip_vision_model": "siglip_vision_model is no causal language model",
    "t5": "is an encoder-decoder model",
    "deepseek_v32": "an index of its own",
    "diffllama": "attends twice to the same keys",
}


@pytest.mark.parametrize("family", REFUSED)
def test_models_that_cannot_be_compressed_are_refused_before_their_weights(family, directory):
    config = {"model_type": family, "architectures": ["BertModel" if family == "bert" else "Any"]}
    (directory / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=REFUSED[family]) as caught:
        skeleton_in(directory)
    assert "\n" not in str(caught.value)


def test_encoders_that_transformers_loads_to_write_are_refused():
    model = AutoModelForCausalLM.from_config(
        BertConfig(vocab_size=97, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
    )
    model.set_attn_implementation("winnow")
    with pytest.raises(ModelError, match="configured as bidirectional"):
        winnow.CompressedCache(model, "full")
    with pytest.raises(ModelError, match="configured as bidirectional"):
        check_shapes(model, [winnow.method("full")], lengths=[40], fold_every=None)


def test_models_of_states_alone_are_refused():
    model = AutoModelForCausalLM.from_config(MambaConfig(vocab_size=97, hidden_size=32, num_hidden_layers=1))
    model.set_attn_implementation("winnow")
    with pytest.raises(CacheError, match="has no full-attention layer"):
        winnow.CompressedCache(model, "full")
    with pytest.raises(ModelError, match="has no full-attention layer"):
        check_shapes(model, [winnow.method("full")], lengths=[40], fold_every=None)
