"""Linear layers with a way of their own for few rows: which of a model get one on this processor."""

from __future__ import annotations

from torch import Tensor, nn

from winnow.kernels import linear
from winnow.models.compiled import CompiledLinear
from winnow.models.direct import DirectLinear
from winnow.models.dtypes import cpu_has_tiles
from winnow.models.lines import begin_with_lines
from winnow.models.replacing import replace_layers
from winnow.models.transposed import TransposedLinear


def read_weights_directly(model: nn.Module) -> None:
    """Has the linear layers of a model multiply few rows without copying their weight, in place.

    Parameters, their names, hooks, and what the layers compute stay, the last bit of outputs aside. Layers on other
    devices, of libraries, with a forward of their own, or on processors where it would be no faster are left as they
    are. On processors with tiles it is for bfloat16, and parameters may move in memory (`begin_with_lines`).
    """
    kind = layers_of_this_processor()
    if kind is None:
        return

    def direct(_: str, layer: nn.Module) -> DirectLinear | None:
        # Of a single input torch rounds the product before it adds the bias.
        if type(layer) is not nn.Linear or layer.in_features == 1 or "forward" in vars(layer):
            return None
        return kind.of(layer) if _suits(layer.weight, kind) else None

    if replace_layers(model, direct) and kind is TransposedLinear:
        begin_with_lines(model)


def layers_of_this_processor() -> type[DirectLinear] | None:
    """The layers that are faster than torch's own for few rows on this processor, or None."""
    if linear.outruns_torch():
        return CompiledLinear
    return TransposedLinear if cpu_has_tiles() else None


def _suits(weight: Tensor, kind: type[DirectLinear]) -> bool:
    return type(weight) is nn.Parameter and weight.device.type == "cpu" and kind.few(weight.dtype) > 0
