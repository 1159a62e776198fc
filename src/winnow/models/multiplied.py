"""Models whose products with weights are all done by the compiled kernels."""

from __future__ import annotations

from torch import nn

from winnow.models.roundable import weights_to_round


def multiplies_by_kernels(model: nn.Module) -> bool:
    """True for a model of linear layers, experts and embeddings, whose other parameters are vectors.

    False for convolutions and routers, by which torch multiplies. A skeleton will do.
    """
    known = {layer.get_parameter(name) for _, layer, name in weights_to_round(model)}
    known |= {layer.get_parameter("weight") for layer in model.modules() if isinstance(layer, nn.Embedding)}
    return all(each.ndim < 2 or each in known for each in model.parameters())
