"""Devices of a model's layers, where they are spread over several."""

from __future__ import annotations

import torch
from torch import nn
from transformers import PreTrainedModel

from winnow.cache.decoder_modules import decoder_modules
from winnow.models.devices import input_device


def layer_devices(model: PreTrainedModel, layers: int) -> list[torch.device]:
    """The device on which each of the decoder's layers attends, and so the one where its cache is."""
    devices = [input_device(model)] * layers
    if len(set((getattr(model, "hf_device_map", None) or {}).values())) < 2:
        return devices
    for layer, module in decoder_modules(model):
        if layer < layers:
            devices[layer] = _device_of(module, input_device(model))
    return devices


def _device_of(module: nn.Module, main: torch.device) -> torch.device:
    """The device of a module's weights; that of the whole model for weights that come only when they are used."""
    weight = next(module.parameters(), None)
    return main if weight is None or weight.is_meta else weight.device
