"""The modules of a decoder's layers, told by their names from those of vision and audio towers."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

_TOWERS = ("vision", "audio")
"""Parts of the names of modules that see images or hear; their layers are counted, too."""


def decoder_modules(model: nn.Module) -> Iterator[tuple[int, nn.Module]]:
    """Every module that knows its layer, as attention does, with the index of that layer."""
    for name, module in model.named_modules():
        layer = getattr(module, "layer_idx", None)
        if isinstance(layer, int) and not any(tower in name for tower in _TOWERS):
            yield layer, module
