"""The machine and the versions that results were measured with."""

from __future__ import annotations

import platform
from pathlib import Path

import torch
import transformers

from winnow.kernels import backend
from winnow.version import __version__


def environment(device: torch.device) -> dict[str, str]:
    """Processor, threads, device, kernels and versions, as texts."""
    return {
        "processor": processor_name(),
        "threads": str(torch.get_num_threads()),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else str(device),
        "kernels": backend(device),
        "winnow": __version__,
        "torch": str(torch.__version__),
        "transformers": transformers.__version__,
        "python": platform.python_version(),
    }


def processor_name() -> str:
    """The processor's name, as the system tells it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
