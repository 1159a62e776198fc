"""Hybrid models against llama.cpp: files of their shapes, and a whole run on small ones."""

from __future__ import annotations

import sys
from collections.abc import Callable
from math import prod
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig

from support.instruction_sets import needs_native
from support.llama_turns_program import write_program

gguf = pytest.importorskip("gguf")
pytestmark = pytest.mark.usefixtures("one_thread")

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
sys.path[:0] = [str(BENCHMARKS), str(BENCHMARKS / "peers")]

import hybrid_gguf  # noqa: E402
import hybrid_models  # noqa: E402
from hybrid_shapes import configurations  # noqa: E402

SMALL = {"num_hidden_layers": 4, "hidden_size": 64, "intermediate_size": 96, "vocab_size": 300}
ATTENTION = {"num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": True}


@pytest.mark.parametrize("name", configurations())
def test_files_have_as_many_numbers_as_models(name: str) -> None:
    config = configurations()[name]
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    found = sum(map(prod, hybrid_gguf.tensors_of(config).values()))
    assert found == sum(each.numel() for each in model.parameters())


def small_qwen() -> PreTrainedConfig:
    heads = {"linear_num_key_heads": 2, "linear_num_value_heads": 2}
    dims = {"head_dim": 32, "linear_key_head_dim": 32, "linear_value_head_dim": 32}
    return AutoConfig.for_model("qwen3_5_text", **SMALL, **ATTENTION, **heads, **dims)


def small_lfm() -> PreTrainedConfig:
    return AutoConfig.for_model("lfm2", **SMALL, **ATTENTION, full_attn_idxs=[1, 3], block_multiple_of=32)


@pytest.mark.parametrize("small", [small_qwen, small_lfm])
def test_matrices_are_blocks_of_4_bits(small: Callable[[], PreTrainedConfig], tmp_path: Path) -> None:
    config = small()
    hybrid_gguf.write_hybrid_gguf(tmp_path / "model.gguf", config)
    tensors = {each.name: each for each in gguf.GGUFReader(tmp_path / "model.gguf").tensors}
    expected = hybrid_gguf.tensors_of(config)
    assert {name: tuple(map(int, each.shape[::-1])) for name, each in tensors.items()} == expected
    kinds = {name: each.tensor_type.name for name, each in tensors.items()}
    assert kinds.pop("token_embd.weight") == "Q8_0"
    apart = ("norm.weight", "conv1d.weight", "shortconv.conv.weight", "bias", "ssm_a")
    assert {kind for name, kind in kinds.items() if name.endswith(apart)} == {"F32"}
    assert {kind for name, kind in kinds.items() if not name.endswith(apart)} == {"Q4_0"}


@needs_native
def test_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(hybrid_models, "configurations", lambda: {"small": small_qwen()})
    monkeypatch.setattr(hybrid_models, "REST", 0.0)
    program = write_program(tmp_path / "llama-turns")
    options = ["--depths", "12,20", "--rounds", "2", "--prompts", "1", "--threads", "1", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["hybrid_models.py", *options, "--llama-turns", str(program)])
    hybrid_models.main()
    (page,) = tmp_path.glob("hybrid_models-*.md")
    lines = [line for line in page.read_text().splitlines() if line.startswith("| small")]
    assert [line.split("|")[2].strip() for line in lines] == ["12", "20"]
    assert all(line.count("x ") == 4 for line in lines)
    assert lines[0] in capsys.readouterr().out


def test_a_program_that_fails_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(hybrid_models, "configurations", lambda: {"small": small_qwen()})
    program = tmp_path / "llama-turns"
    monkeypatch.setattr(sys, "argv", ["hybrid_models.py", "--llama-turns", str(program), "--out", str(tmp_path)])
    with pytest.raises(SystemExit):
        hybrid_models.main()
    assert "Cannot run" in capsys.readouterr().err
    assert not list(tmp_path.glob("*.md"))
