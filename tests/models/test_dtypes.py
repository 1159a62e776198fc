"""The type that weights get, by name and by what the processor computes with."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig

from winnow.errors import ModelError
from winnow.models import dtypes
from winnow.models.dtypes import pick_dtype

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


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
    monkeypatch.setattr(dtypes, "cpu_has_bfloat16", lambda: instructions)
    assert pick_dtype("auto", device, LlamaConfig(dtype=kept)) == expected


def test_a_name_is_what_it_says(monkeypatch):
    monkeypatch.setattr(dtypes, "cpu_has_bfloat16", lambda: False)
    for name in ("float32", "bfloat16", "float16"):
        assert pick_dtype(name, CPU, LlamaConfig(dtype=torch.bfloat16)) == getattr(torch, name)
    with pytest.raises(ModelError, match="There is no dtype 'int8'"):
        pick_dtype("int8", CPU, LlamaConfig())
