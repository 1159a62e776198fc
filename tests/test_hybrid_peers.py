"""Models with linear states and with latents against llama.cpp: files of their shapes, and whole runs on small ones."""

from __future__ import annotations

import sys
from collections.abc import Callable
from math import prod
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig

from support.instruction_sets import needs_native
from support.llama_turns_program import write_program

gguf = pytest.importorskip("gguf")
pytestmark = pytest.mark.usefixtures("one_thread")

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
sys.path[:0] = [str(BENCHMARKS), str(BENCHMARKS / "peers")]

import contenders  # noqa: E402
import hybrid_gguf  # noqa: E402
import hybrid_models  # noqa: E402
import hybrid_shapes  # noqa: E402
import latent_gguf  # noqa: E402
import latent_models  # noqa: E402
import latent_shapes  # noqa: E402

SMALL = {"num_hidden_layers": 4, "hidden_size": 64, "intermediate_size": 96, "vocab_size": 300}
ATTENTION = {"num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": True}


@pytest.mark.parametrize("name", hybrid_shapes.configurations())
def test_files_have_as_many_numbers_as_models(name: str) -> None:
    config = hybrid_shapes.configurations()[name]
    assert numbers_of(hybrid_gguf.tensors_of(config)) == numbers_of_model(config)


@pytest.mark.parametrize("name", latent_shapes.configurations())
def test_files_with_latents_have_as_many_numbers_as_models(name: str) -> None:
    config = latent_shapes.configurations()[name]
    assert numbers_of(latent_gguf.tensors_of(config)) == numbers_of_model(config)


def numbers_of(tensors: dict[str, tuple[int, ...]]) -> int:
    return sum(map(prod, tensors.values()))


def numbers_of_model(config: PreTrainedConfig) -> int:
    """Numbers of parameters, and of the biases by which experts are chosen, which are none."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    biases = [each for name, each in model.named_buffers() if name.endswith("e_score_correction_bias")]
    return sum(each.numel() for each in [*model.parameters(), *biases])


def small_qwen() -> PreTrainedConfig:
    heads = {"linear_num_key_heads": 2, "linear_num_value_heads": 2}
    dims = {"head_dim": 32, "linear_key_head_dim": 32, "linear_value_head_dim": 32}
    return AutoConfig.for_model("qwen3_5_text", **SMALL, **ATTENTION, **heads, **dims)


def small_lfm() -> PreTrainedConfig:
    return AutoConfig.for_model("lfm2", **SMALL, **ATTENTION, full_attn_idxs=[1, 3], block_multiple_of=32)


def small_with_latents(family: str, **more: Any) -> PreTrainedConfig:
    latents = {"kv_lora_rank": 32, "qk_rope_head_dim": 16, "qk_nope_head_dim": 32, "v_head_dim": 32}
    sizes = {**SMALL, **ATTENTION, **latents, "num_hidden_layers": 2, "num_key_value_heads": 4}
    return AutoConfig.for_model(family, **sizes, bos_token_id=None, eos_token_id=None, **more)


EXPERTS = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}


def small_youtu() -> PreTrainedConfig:
    return small_with_latents("youtu", q_lora_rank=64)


def small_glm() -> PreTrainedConfig:
    return small_with_latents("glm4_moe_lite", q_lora_rank=64, **EXPERTS)


def small_deepseek() -> PreTrainedConfig:
    return small_with_latents("deepseek_v2", q_lora_rank=None, first_k_dense_replace=1, **EXPERTS)


@pytest.mark.parametrize("small", [small_qwen, small_lfm])
def test_matrices_are_blocks_of_4_bits(small: Callable[[], PreTrainedConfig], tmp_path: Path) -> None:
    config = small()
    hybrid_gguf.write_hybrid_gguf(tmp_path / "model.gguf", config)
    apart = ("norm.weight", "conv1d.weight", "shortconv.conv.weight", "bias", "ssm_a")
    check_kinds(tmp_path / "model.gguf", hybrid_gguf.tensors_of(config), apart)


@pytest.mark.parametrize("small", [small_youtu, small_glm, small_deepseek])
def test_matrices_of_latents_and_experts_are_blocks_of_4_bits(
    small: Callable[[], PreTrainedConfig], tmp_path: Path
) -> None:
    config = small()
    latent_gguf.write_latent_gguf(tmp_path / "model.gguf", config)
    expected = latent_gguf.tensors_of(config)
    tensors = check_kinds(tmp_path / "model.gguf", expected, ("norm.weight", "bias", "gate_inp.weight"))
    assert all((each.data == 1).all() for name, each in tensors.items() if name.endswith("norm.weight"))
    assert all((each.data == 0).all() for name, each in tensors.items() if name.endswith("bias"))


def check_kinds(path: Path, expected: dict[str, tuple[int, ...]], apart: tuple[str, ...]) -> dict[str, Any]:
    """The tensors of a file, after their shapes and kinds were checked. apart: ends of names of those in fp32."""
    tensors = {each.name: each for each in gguf.GGUFReader(path).tensors}
    assert {name: tuple(map(int, each.shape[::-1])) for name, each in tensors.items()} == expected
    kinds = {name: each.tensor_type.name for name, each in tensors.items()}
    assert kinds.pop("token_embd.weight") == "Q8_0"
    assert {kind for name, kind in kinds.items() if name.endswith(apart)} == {"F32"}
    assert {kind for name, kind in kinds.items() if not name.endswith(apart)} == {"Q4_0"}
    return tensors


@pytest.mark.parametrize(("small", "dense", "shared", "gating"), [(small_glm, 1, 1, 2), (small_deepseek, 1, 2, 1)])
def test_files_tell_latents_and_experts(
    small: Callable[[], PreTrainedConfig], dense: int, shared: int, gating: int, tmp_path: Path
) -> None:
    config = small()
    latent_gguf.write_latent_gguf(tmp_path / "model.gguf", config)
    told = fields(tmp_path / "model.gguf")
    lengths = {"key_length": 48, "value_length": 32, "key_length_mla": 48, "value_length_mla": 32}
    ranks = {"head_count_kv": 1, "kv_lora_rank": 32, "q_lora_rank": config.q_lora_rank or 0}
    assert {name: told[f"attention.{name}"] for name in {**lengths, **ranks}} == {**lengths, **ranks}
    counts = {"leading_dense_block_count": dense, "expert_count": 4, "expert_used_count": 2}
    counts |= {"expert_shared_count": shared, "expert_gating_func": gating, "expert_feed_forward_length": 32}
    assert {name: told[name] for name in counts} == counts


def test_models_without_experts_have_dense_layers_alone(tmp_path: Path) -> None:
    latent_gguf.write_latent_gguf(tmp_path / "model.gguf", small_youtu())
    told = fields(tmp_path / "model.gguf")
    assert told["leading_dense_block_count"] == told["block_count"] == 2
    assert told["expert_shared_count"] == 0
    assert "expert_count" not in told


def fields(path: Path) -> dict[str, Any]:
    """Keys of a file's architecture."""
    found = gguf.GGUFReader(path).fields
    return {name.removeprefix("deepseek2."): each.contents() for name, each in found.items() if "deepseek2." in name}


RACES = [(hybrid_models, small_qwen), (latent_models, small_glm)]
"""Commands, and models that they are tried on."""


@needs_native
@pytest.mark.parametrize(("command", "small"), RACES)
def test_a_run(
    command: ModuleType,
    small: Callable[[], PreTrainedConfig],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(command, "configurations", lambda: {"small": small()})
    monkeypatch.setattr(contenders, "REST", 0.0)
    program = write_program(tmp_path / "llama-turns")
    options = ["--depths", "12,20", "--rounds", "2", "--prompts", "1", "--threads", "1", "--out", str(tmp_path)]
    name = command.__name__
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *options, "--llama-turns", str(program)])
    command.main()
    (page,) = tmp_path.glob(f"{name}-*.md")
    assert f"`python benchmarks/peers/{name}.py`" in page.read_text()
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
