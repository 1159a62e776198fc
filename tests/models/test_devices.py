"""Devices by name."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM

from winnow import diagnose
from winnow.bundled import MODEL_PATH
from winnow.errors import ModelError
from winnow.models import devices, load_model, open_model, pick_device


@pytest.fixture
def cuda(monkeypatch):
    """Two CUDA devices, as far as torch says so."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


def test_names(cuda, monkeypatch):
    assert pick_device("cpu") == torch.device("cpu")
    assert pick_device("auto") == pick_device("cuda") == torch.device("cuda")
    assert pick_device("cuda:1") == torch.device("cuda", 1)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert pick_device("mps") == torch.device("mps")


def test_without_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert pick_device("auto") == torch.device("cpu")
    for name, told in {"cuda": "No CUDA device", "cuda:0": "No CUDA device", "mps": r"No Apple GPU \(mps\)"}.items():
        with pytest.raises(ModelError, match=told):
            pick_device(name)


@pytest.mark.parametrize("name", ["tpu", "", "cuda:", "cuda:x", "cuda:-1", "cpu:0", "CPU", "meta", "cuda:1 "])
def test_names_of_no_device(cuda, name):
    with pytest.raises(ModelError, match="There is no device"):
        pick_device(name)


def test_a_device_that_is_not_there(cuda):
    with pytest.raises(ModelError, match="no cuda:2 on this machine; there are cuda:0, cuda:1"):
        pick_device("cuda:2")


@pytest.mark.parametrize(
    ("device", "device_map", "told"),
    [
        ("auto", "all", "no device map 'all'; use auto, balanced"),
        ("cpu", "auto", "leave --device cpu out"),
        ("tpu", None, "no device 'tpu'"),
    ],
)
def test_what_cannot_be_is_told_before_weights_are_read(monkeypatch, device, device_map, told):
    monkeypatch.setattr("winnow.models.loading._loaded", lambda *_: pytest.fail("weights were read"))
    with pytest.raises(ModelError, match=told):
        load_model(open_model(MODEL_PATH), device, device_map=device_map)


def test_a_map_needs_accelerate(monkeypatch):
    monkeypatch.setattr(devices, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match="needs accelerate: pip install accelerate"):
        devices.check_device_map("auto", "auto")


def test_inputs_of_weights_that_come_when_they_are_used_go_to_the_processor():
    accelerate = pytest.importorskip("accelerate")
    model = AutoModelForCausalLM.from_pretrained(MODEL_PATH).eval()
    assert devices.input_device(model) == model.device
    away = accelerate.cpu_offload(model, execution_device="cpu")
    assert away.device.type == "meta"
    assert devices.input_device(away) == torch.device("cpu")
    away.set_attn_implementation("winnow")
    ids = torch.arange(2, 60)
    assert diagnose(away, ids, "adakv @ 8").tokens == len(ids)


def test_commands_take_a_map(winnow_run, folder):
    (folder / "text.txt").write_text("The lemon is red.")
    asked = ("run", "--document", "text.txt", "--question", "What is red?", "--max-new-tokens", "2")
    assert winnow_run(*asked, "--device-map", "auto")[0] == 0
    for wrong, code, told in (
        (("--device-map", "all"), 2, "'all'"),
        (("--device-map", "auto", "--device", "cpu"), 1, "leave --device cpu out"),
        (("--device", "cuda:x"), 2, "cuda:1 or the like"),
    ):
        found, _, err = winnow_run(*asked, *wrong)
        assert (found, told in err) == (code, True), err


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("devices")
