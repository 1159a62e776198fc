"""Files of small models whose weights are written in the few bits of published checkpoints, and what they mean."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from support.families import COMMON, build

GROUP = 32
"""Weights of MXFP4 that share an exponent."""
BLOCK = 128
"""Rows and columns of FP8 that share a scale."""
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
"""Values of the 4 bits of MXFP4."""


def write_mxfp4(folder: Path) -> dict[str, Tensor]:
    """A mixture as GPT-OSS comes; returns its experts' weights [E, I, O] in float64."""
    build("gpt_oss", hidden_size=64, intermediate_size=64).bfloat16().save_pretrained(folder)
    draw, written, meant = torch.Generator().manual_seed(0), dict[str, Tensor](), dict[str, Tensor]()
    for name, tensor in load_file(folder / "model.safetensors").items():
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            written[name] = tensor
            continue
        experts, inputs, outputs = tensor.shape
        size = (experts, outputs, inputs // GROUP)
        pairs = torch.randint(256, (*size, GROUP // 2), dtype=torch.uint8, generator=draw)
        exponents = torch.randint(118, 124, size, dtype=torch.uint8, generator=draw)
        written[f"{name}_blocks"], written[f"{name}_scales"] = pairs, exponents
        values = torch.tensor(E2M1, dtype=torch.float64)[torch.stack([pairs & 15, pairs >> 4], dim=-1).long()]
        scaled = values.flatten(-2) * 2.0 ** (exponents[..., None].double() - 127)
        meant[name] = scaled.flatten(-2).mT
    left = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
    _write(folder, written, {"quant_method": "mxfp4", "modules_to_not_convert": left})
    return meant


def write_fp8(folder: Path) -> dict[str, Tensor]:
    """A dense model whose linear layers have blocks of FP8; returns their weights in float64."""
    sizes: dict[str, Any] = {**COMMON, "hidden_size": BLOCK, "intermediate_size": 2 * BLOCK, "head_dim": 64}
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**sizes)).bfloat16().save_pretrained(folder)
    written, meant = dict[str, Tensor](), dict[str, Tensor]()
    for name, tensor in load_file(folder / "model.safetensors").items():
        if "_proj" not in name:
            written[name] = tensor
            continue
        blocks = tensor.float().unflatten(0, (-1, BLOCK)).unflatten(2, (-1, BLOCK))
        scales = blocks.abs().amax((1, 3)) / torch.finfo(torch.float8_e4m3fn).max
        rounded = (blocks / scales[:, None, :, None]).to(torch.float8_e4m3fn)
        written[name], written[f"{name}_scale_inv"] = rounded.flatten(2).flatten(0, 1), scales
        meant[name] = (rounded.double() * scales[:, None, :, None].double()).flatten(2).flatten(0, 1)
    about = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [BLOCK, BLOCK]}
    _write(folder, written, about)
    return meant


def _write(folder: Path, tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**config, "quantization_config": about}), encoding="utf-8")
