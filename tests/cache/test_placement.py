"""Models whose layers are on several devices, as far as that can be had without a GPU: the processor and a disk."""

from __future__ import annotations

import gc
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import winnow
from support.asked import DOCUMENT
from support.plain_layers import load_plain
from winnow.bundled import MODEL_PATH
from winnow.cache.placement import layer_devices
from winnow.errors import ModelError
from winnow.evaluate.prompts import encode_prompt
from winnow.models import load_model, open_model

pytest.importorskip("accelerate")
pytestmark = pytest.mark.usefixtures("one_thread")

SPLIT = {
    "model.embed_tokens": "cpu",
    "model.rotary_emb": "cpu",
    "model.layers.0": "cpu",
    "model.layers.1": "disk",
    "model.layers.2": "cpu",
    "model.layers.3": "disk",
    "model.norm": "cpu",
    "lm_head": "cpu",
}
STEPS = 6


@pytest.fixture(scope="module")
def source():
    return open_model(MODEL_PATH)


@pytest.fixture(scope="module")
def ids(source):
    return encode_prompt(source.tokenizer, DOCUMENT.text, DOCUMENT.questions[0].text)


@pytest.fixture(scope="module")
def whole(source):
    return load_plain(source)


@pytest.fixture(scope="module", params=["auto", "split"])
def spread(request, source):
    model = load_model(source, device_map=SPLIT if request.param == "split" else request.param)
    assert len(set(getattr(model, "hf_device_map", {"": "cpu"}).values())) == (2 if request.param == "split" else 1)
    return model


def logits(model, ids, **options):
    """[STEPS, V] of the most likely continuation, and the cache."""
    cache = winnow.CompressedCache(model, **options)
    found = []
    with torch.no_grad():
        for _ in range(STEPS):
            found.append(model(ids, past_key_values=cache, use_cache=True).logits[0, -1])
            ids = found[-1].argmax()[None, None]
    return torch.stack(found), cache


@pytest.mark.parametrize(
    "options",
    [
        {"method": "full"},
        {"method": "adakv @ 24"},
        {"method": "kvec @ 24"},
        {"method": "expectedattention+ada @ 24"},
        {"method": "h2o @ 24", "fold_every": 2},
        {"method": "snapkv+bits(8) @ 16KiB"},
    ],
    ids=str,
)
def test_caches_are_as_those_of_a_model_on_one_device(whole, spread, ids, options):
    expected, one = logits(whole, ids, **options)
    found, other = logits(spread, ids, **options)
    assert torch.equal(found, expected)
    assert one.stats().slots == other.stats().slots


def test_beams_and_rows(whole, spread, ids):
    asked = ids.repeat(2, 1)
    expected, found = (
        model.generate(
            asked, past_key_values=winnow.CompressedCache(model, "adakv @ 24"), max_new_tokens=4, num_beams=2
        )
        for model in (whole, spread)
    )
    assert torch.equal(found, expected)


def test_the_folder_of_offloaded_weights_goes_with_the_model(source, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    model = load_model(source, device_map=SPLIT)
    assert len(list(tmp_path.iterdir())) == 1
    del model
    gc.collect()
    assert list(tmp_path.iterdir()) == []


def test_what_needs_weights_that_are_away_is_refused(source, ids, tmp_path):
    model = load_model(source, device_map=SPLIT)
    with pytest.raises(ModelError, match="is offloaded, so its matrix cannot be read"):
        winnow.CompressedCache(model, "criticalkv @ 24")
    with pytest.raises(ModelError, match="offloaded, so the model cannot be recognized"):
        winnow.compress(model, ids, "adakv @ 24").save(tmp_path / "c")


def test_contexts_go_to_the_devices_of_their_layers():
    """Devices that nobody has here: modules that say they are there."""

    class Attention(nn.Module):
        def __init__(self, index, device):
            super().__init__()
            self.layer_idx = index
            self.found = SimpleNamespace(device=torch.device(device), is_meta=device == "meta")

        def parameters(self, recurse=True):
            return iter([self.found])

    modules = [("a", Attention(0, "cuda:0")), ("b", Attention(1, "cuda:1")), ("c", Attention(2, "meta"))]
    modules += [("vision.a", Attention(0, "cuda:7"))]
    model = SimpleNamespace(
        device=torch.device("cuda:0"), hf_device_map={"a": 0, "b": 1}, named_modules=lambda: iter(modules)
    )
    assert [str(device) for device in layer_devices(model, 3)] == ["cuda:0", "cuda:1", "cuda:0"]
    model.hf_device_map = {"": 0}
    assert [str(device) for device in layer_devices(model, 3)] == ["cuda:0"] * 3
