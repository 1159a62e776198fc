"""Devices by name, checked before any weight is read."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from importlib.util import find_spec

import torch
from transformers import PreTrainedModel

from winnow.errors import ModelError
from winnow.models.container_memory import container_memory

DEVICE_MAPS = ("auto", "balanced", "balanced_low_0", "sequential")
"""Ways to spread a model's layers over all devices, as accelerate names them."""
DeviceMap = str | Mapping[str, str | int]
"""One of those; or a device for every part of the model, by its name."""


def pick_device(device: str) -> torch.device:
    """The device of a name. Raises ModelError where it is not available."""
    # Apple's GPUs have to be asked for: nobody has tried Winnow on one.
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device == "cpu":
        return torch.device(device)
    if device == "mps":
        return _metal()
    if named := re.fullmatch(r"cuda(?::(\d+))?", device):
        return _cuda(device, None if named[1] is None else int(named[1]))
    raise ModelError(f"There is no device {device!r}; use auto, cpu, cuda, cuda:1 or the like, or mps.")


def check_device_map(device_map: DeviceMap | None, device: str) -> None:
    """Raises ModelError for an unknown map, one besides a device, and without accelerate."""
    if device_map is None:
        return
    if isinstance(device_map, str) and device_map not in DEVICE_MAPS:
        raise ModelError(f"There is no device map {device_map!r}; use {', '.join(DEVICE_MAPS)}.")
    if device != "auto":
        raise ModelError(f"A device map chooses the devices itself; leave --device {device} out.")
    if find_spec("accelerate") is None:
        raise ModelError("A device map needs accelerate: pip install accelerate; or leave --device-map out.")


def _cuda(device: str, index: int | None) -> torch.device:
    if not torch.cuda.is_available():
        raise ModelError("No CUDA device is available; use --device cpu, or install a CUDA build of torch.")
    count = torch.cuda.device_count()
    if index is not None and index >= count:
        there = ", ".join(f"cuda:{each}" for each in range(count))
        raise ModelError(f"There is no {device} on this machine; there {'are' if count > 1 else 'is'} {there}.")
    return torch.device(device)


def _metal() -> torch.device:
    if not torch.backends.mps.is_available():
        raise ModelError("No Apple GPU (mps) is available to this build of torch; use --device cpu.")
    return torch.device("mps")


def input_device(model: PreTrainedModel) -> torch.device:
    """The device that a model's inputs go to; the CPU where the weights that take them come only when they are used.

    accelerate, which brings them, then moves the inputs on to where they are needed.
    """
    device: torch.device = model.device
    away = device.type == "meta" and any(hasattr(each, "_hf_hook") for each in model.modules())
    return torch.device("cpu") if away else device


def available_memory(device: torch.device) -> int | None:
    """Bytes that a cache could take on a device now, or None where the system does not tell."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free)
    return min((each for each in (_system_memory(), container_memory()) if each is not None), default=None)


def free_memory(model: PreTrainedModel) -> int | None:
    """Free bytes of the GPUs that a model is spread over, or of the machine where it is on none."""
    devices = {weight.device for weight in model.parameters() if weight.device.type == "cuda"} or {model.device}
    free = [available_memory(device) for device in devices]
    return None if None in free else sum(bytes_ for bytes_ in free if bytes_ is not None)


def _system_memory() -> int | None:
    """Bytes that the machine could give; None where it does not tell."""
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            found = next((line for line in lines if line.startswith("MemAvailable:")), None)
        if found is not None:
            return int(found.split()[1]) * 1024
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, AttributeError):
        return None
