"""The type that weights get, by name and by what the processor computes with."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig

from support.families import build_any
from support.sources import source_in
from winnow.errors import ModelError
from winnow.models import dtypes, load_model
from winnow.models.dtypes import pick_dtype
from winnow.models.loading import dtype_for, open_skeleton
from winnow.models.multiplied import multiplies_by_kernels

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def processor(monkeypatch: pytest.MonkeyPatch, instructions: bool, whole_numbers: bool = False) -> None:
    """One with instructions for bfloat16 or without, and with kernels that multiply many rows as whole numbers."""
    monkeypatch.setattr(dtypes, "cpu_has_bfloat16", lambda: instructions)
    monkeypatch.setattr(dtypes, "multiplies_many", lambda dtype: whole_numbers and dtype == torch.bfloat16)


def unasked() -> bool:
    raise AssertionError("asked where it does not matter")


@pytest.mark.parametrize(
    ("kept", "instructions", "device", "expected"),
    [
        (torch.bfloat16, True, CPU, "auto"),
        (torch.bfloat16, False, CPU, torch.float32),
        (torch.float16, True, CPU, torch.float32),
        (torch.float32, False, CPU, "auto"),
        (None, False, CPU, "auto"),
        (torch.bfloat16, False, CUDA, "auto"),
        (torch.float16, False, CUDA, "auto"),
    ],
)
def test_auto_is_the_checkpoints_where_the_processor_has_it(monkeypatch, kept, instructions, device, expected):
    processor(monkeypatch, instructions)
    assert pick_dtype("auto", device, LlamaConfig(dtype=kept), unasked) == expected


@pytest.mark.parametrize("by_kernels", [True, False])
def test_whole_numbers_serve_models_that_kernels_alone_multiply(monkeypatch, by_kernels):
    processor(monkeypatch, instructions=False, whole_numbers=True)
    for kept, expected in [(torch.bfloat16, "auto" if by_kernels else torch.float32), (torch.float16, torch.float32)]:
        assert pick_dtype("auto", CPU, LlamaConfig(dtype=kept), lambda: by_kernels) == expected
    unpacked = torch.bfloat16 if by_kernels else torch.float32
    assert pick_dtype("auto", CPU, LlamaConfig(), lambda: by_kernels, gguf=True) == unpacked


def test_a_name_is_what_it_says(monkeypatch):
    processor(monkeypatch, instructions=False)
    for name in ("float32", "bfloat16", "float16"):
        assert pick_dtype(name, CPU, LlamaConfig(dtype=torch.bfloat16), unasked) == getattr(torch, name)
    with pytest.raises(ModelError, match="There is no dtype 'int8'"):
        pick_dtype("int8", CPU, LlamaConfig(), unasked)


@pytest.mark.parametrize(
    ("family", "expected"),
    [
        ("llama", True),
        ("qwen2", True),
        ("gemma3_text", True),
        ("mixtral", False),  # a router
        ("minicpm3", True),  # latents
        ("lfm2", False),  # convolutions
        ("gpt2", False),  # linear layers of another class
        ("qwen2_5_vl", False),  # images
    ],
)
def test_torch_multiplies_by_what_is_no_linear_layer_and_no_expert(family, expected):
    assert multiplies_by_kernels(build_any(family)) is expected


@pytest.mark.parametrize(("family", "expected"), [("llama", torch.bfloat16), ("mixtral", torch.float32)])
def test_a_model_is_loaded_in_that_type(monkeypatch, tmp_path, family, expected):
    processor(monkeypatch, instructions=False, whole_numbers=True)
    build_any(family).bfloat16().save_pretrained(tmp_path)
    source = source_in(tmp_path)
    assert load_model(source, "cpu").dtype == open_skeleton(source, "cpu").dtype == expected


def test_a_model_on_several_devices_has_torchs_layers(monkeypatch, tmp_path):
    processor(monkeypatch, instructions=False, whole_numbers=True)
    build_any("llama").bfloat16().save_pretrained(tmp_path)
    source = source_in(tmp_path)
    assert dtype_for(source, CPU, "auto", spread=True) == torch.float32
    assert dtype_for(source, CPU, "auto") == "auto"
