"""Types of weights."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from transformers import PreTrainedConfig

from winnow.errors import ModelError
from winnow.kernels.linear import multiplies_many

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def pick_dtype(
    dtype: str,
    device: torch.device,
    config: PreTrainedConfig,
    by_kernels: Callable[[], bool],
    gguf: bool = False,
    weights: str = "auto",
) -> torch.dtype | str:
    """The type of a name; "auto" for that of the checkpoint, if the device computes with it: on a CPU else float32.

    by_kernels: asked where it matters: True if Winnow's kernels do all products of the model's weights. gguf: the
    weights are a GGUF file's; weights: their bits, if not the checkpoint's own.

    Raises ModelError for an unknown name.
    """
    if dtype == "auto" and weights != "auto":
        return torch.bfloat16  # what the kernels for few bits multiply by
    if dtype == "auto":
        return _of_blocks(device, by_kernels) if gguf else _of_checkpoint(device, config, by_kernels)
    if dtype not in DTYPES:
        raise ModelError(f"There is no dtype {dtype!r}; use auto, {', '.join(DTYPES)}.")
    return DTYPES[dtype]


def _of_checkpoint(device: torch.device, config: PreTrainedConfig, by_kernels: Callable[[], bool]) -> torch.dtype | str:
    if device.type != "cpu":
        return "auto"
    kept = getattr(config, "dtype", None)
    # Few CPUs have instructions for float16, and with them it is as fast as float32. Where there are none for bfloat16,
    # either makes torch's products several times slower.
    slow = kept == torch.float16 or (kept == torch.bfloat16 and not _computes_in_bfloat16(by_kernels))
    return torch.float32 if slow else "auto"


def _of_blocks(device: torch.device, by_kernels: Callable[[], bool]) -> torch.dtype:
    """The type to unpack a GGUF file's blocks to: they have none of their own.

    bfloat16 is what the checkpoints are that such files are made of, and half the memory.
    """
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16
    fast = device.type == "cpu" and _computes_in_bfloat16(by_kernels)
    return torch.bfloat16 if fast else torch.float32


def _computes_in_bfloat16(by_kernels: Callable[[], bool]) -> bool:
    """True if this CPU computes in bfloat16 faster than in float32: by its instructions, or in whole numbers."""
    return cpu_has_bfloat16() or (multiplies_many(torch.bfloat16) and by_kernels())


@cache
def cpu_has_bfloat16() -> bool:
    """True if the processor has instructions for products of bfloat16."""
    return any(_capabilities().get(name) for name in ("avx512_bf16", "amx_bf16", "bf16"))


@cache
def torch_multiplies(dtype: torch.dtype) -> bool:
    """True if torch has a library for products of a dtype on this CPU; without one it multiplies number by number."""
    known = {torch.bfloat16: "_is_mkldnn_bf16_supported", torch.float16: "_is_mkldnn_fp16_supported"}.get(dtype)
    return known is None or not hasattr(torch.ops.mkldnn, known) or bool(getattr(torch.ops.mkldnn, known)())


@cache
def cpu_has_tiles() -> bool:
    """True if the processor multiplies tiles of bfloat16 (AMX)."""
    return bool(_capabilities().get("amx_bf16"))


def _capabilities() -> dict[str, Any]:
    """Instructions and sizes of the processor that torch knows of, by name."""
    # Not every release of torch that Winnow works with tells.
    found: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return found


def written_dtype(dtype: torch.dtype) -> str:
    """A dtype as files and results name it: "bfloat16"."""
    return str(dtype).removeprefix("torch.")
