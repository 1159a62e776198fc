"""`winnow models`: sizes as the models really have them, and what this machine's cache holds."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from support.processes import environment
from winnow.bundled import MODEL_PATH
from winnow.cache.hybrid import heads_of
from winnow.commands.local_models import local_models
from winnow.commands.recommended import MEMORIES, WEIGHTS_SHARE, recommended
from winnow.commands.vocabulary import ADVICE

SHAPES = {shape.name: shape for shape in recommended()}


def skeleton(shape):
    config = AutoConfig.for_model(
        shape.model_type,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        hidden_size=shape.hidden,
        intermediate_size=shape.mlp,
        vocab_size=shape.vocabulary,
        tie_word_embeddings=shape.tied,
        max_position_embeddings=shape.context,
    )
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    model.tie_weights()
    return model


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_sizes_are_those_of_transformers(shape):
    model = skeleton(shape)
    assert shape.parameters == model.num_parameters()
    heads = heads_of(model, model.config)
    assert heads == [shape.kv_heads] * shape.layers
    assert shape.cache_bytes_per_token == sum(heads) * 2 * shape.head_dim * torch.bfloat16.itemsize
    assert shape.weight_bytes <= WEIGHTS_SHARE * shape.memory or shape.memory == MEMORIES[-1]


# As their model cards say, in billions.
@pytest.mark.parametrize(
    ("name", "billions"),
    [("Qwen/Qwen2.5-0.5B-Instruct", 0.49), ("Qwen/Qwen2.5-1.5B-Instruct", 1.54), ("Qwen/Qwen2.5-7B-Instruct", 7.61),
     ("meta-llama/Llama-3.2-1B-Instruct", 1.23), ("meta-llama/Llama-3.2-3B-Instruct", 3.21),
     ("Qwen/Qwen3-0.6B", 0.6), ("Qwen/Qwen3-4B", 4.0)],
)  # fmt: skip
def test_sizes_are_those_of_the_model_cards(name, billions):
    assert SHAPES[name].parameters / 1e9 == pytest.approx(billions, abs=0.03)


def test_the_warning_names_a_model_of_the_list():
    assert any(f"--model {name} " in ADVICE for name in SHAPES)


@pytest.fixture
def hub(tmp_path):
    """A cache as huggingface_hub lays it out, of models that need no download."""

    def add(name, files):
        repo = tmp_path / f"models--{name.replace('/', '--')}"
        snapshot = repo / "snapshots" / ("a" * 40)
        (repo / "refs").mkdir(parents=True)
        (repo / "blobs").mkdir()
        (repo / "refs" / "main").write_text("a" * 40)
        snapshot.mkdir(parents=True)
        for number, (file, content) in enumerate(files.items()):
            (repo / "blobs" / str(number)).write_bytes(content)
            (snapshot / file).symlink_to(repo / "blobs" / str(number))

    bundled = (MODEL_PATH / "config.json").read_bytes()
    add("good/bundled", {"config.json": bundled, "model.safetensors": b"x" * 1000})
    bert = {"model_type": "bert", "architectures": ["BertForMaskedLM"]}
    add("bad/t5", {"config.json": json.dumps({"model_type": "t5"}).encode(), "model.safetensors": b"x"})
    add("bad/clip", {"config.json": json.dumps({"model_type": "clip"}).encode(), "model.safetensors": b"x"})
    add(
        "bad/bert",
        {
            "config.json": json.dumps(bert).encode(),
            "model.safetensors": b"x",
        },
    )
    add("bad/future", {"config.json": b'{"model_type": "of-the-future"}', "model.safetensors": b"x"})
    add("bad/broken", {"config.json": b"{", "model.safetensors": b"x"})
    add("bad/parts", {"config.json": bundled})
    add("bad/other", {"README.md": b"x"})
    add("bad/blocks", {"small.gguf": b"x", "large.gguf": b"x"})
    return tmp_path


def test_models_of_a_cache_are_judged(hub):
    found = {model.name: model for model in local_models(hub)}
    assert list(found) == sorted(found)
    assert [name for name, model in found.items() if model.problem is None] == ["good/bundled"]
    assert found["good/bundled"].bytes == 1000 + (MODEL_PATH / "config.json").stat().st_size
    reasons = {
        "bad/t5": "decoder-only",
        "bad/clip": "no causal language model",
        "bad/bert": "BertForMaskedLM, which cannot generate text",
        "bad/future": "Cannot load the configuration",
        "bad/broken": "Cannot load the configuration",
        "bad/parts": "no weights",
        "bad/other": "no config.json",
        "bad/blocks": "large.gguf",
    }
    assert all(expected in found[name].problem for name, expected in reasons.items())


@pytest.mark.parametrize("place", ["missing", "empty", "file"])
def test_no_cache_is_no_models(tmp_path, place):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    assert local_models(tmp_path / place) == []


@pytest.fixture
def folder(tmp_path):
    """Nothing is read from it."""
    return tmp_path


def test_the_command_lists_both(winnow_run, hub, monkeypatch):
    monkeypatch.setattr("winnow.commands.models.local_models", lambda: local_models(hub))
    code, told, err = winnow_run("models")
    assert (code, err) == (0, "")
    assert all(name in told for name in SHAPES)
    assert re.search(r"good/bundled +0\.0 GiB +yes", told)
    assert re.search(r"bad/parts +0\.0 GiB +no: no weights", told)
    lists = json.loads(winnow_run("models", "--json")[1])
    assert [shape["name"] for shape in lists["recommended"]] == list(SHAPES)
    assert {model["name"]: model["problem"] for model in lists["local"]}["good/bundled"] is None


def test_without_local_models_no_torch_is_loaded(tmp_path):
    code = "import sys; from winnow.cli import main; main(['models']); sys.exit('torch' in sys.modules)"
    more = environment(HF_HUB_CACHE=str(tmp_path / "nowhere"))
    run = subprocess.run([sys.executable, "-c", code], env=more, capture_output=True, text=True, timeout=60)
    assert (run.returncode, run.stderr) == (0, "")
    assert "No models in this machine's Hugging Face cache." in run.stdout
