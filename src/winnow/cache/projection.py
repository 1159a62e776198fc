"""The output projection of an attention module, as a matrix per query head."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from winnow.errors import ModelError
from winnow.models.matrices import has_matrix, matrix_of

_NAMES = ("o_proj", "out_proj", "dense", "c_proj", "wo", "Wo")
_REMEDY = "Use the method without its second stage (snapkv instead of criticalkv), or the model in unquantized form."


def output_projection(attention: nn.Module, heads: int, dim: int) -> Tensor:
    """[Hq, Dv, E]: query head h adds its attention output [Dv] times matrix h; biases aside.

    heads: Hq, the query heads; dim: Dv, the size of a value. A view of the weight where that is plain, and written out
    where it is quantized. The matrix is tried on the projection itself, so that adapters and scalings around the weight
    cannot go unnoticed.

    Raises:
        ModelError: no projection is found, or it is more than a matrix that can be read.
    """
    projection = checked_projection(attention)
    weight = matrix_of(projection)
    width = heads * dim
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(width, generator=generator, device="cpu")
    inputs = torch.stack([drawn, torch.zeros_like(drawn)]).to(weight)
    for matrix in (weight.t(), weight):  # Linear keeps [out, in], Conv1D [in, out]
        if matrix.shape[0] == width and _computes(projection, inputs, matrix):
            return matrix.unflatten(0, (heads, dim))
    raise ModelError(
        f"{_name(attention, projection)} does not compute what its weight {list(weight.shape)} alone would for {heads} "
        f"heads of {dim} (an adapter, a scaling?). {_REMEDY} Merge adapters into the weights."
    )


def checked_projection(attention: nn.Module) -> nn.Module:
    """The module that projects the heads' outputs. Raises ModelError where there is none whose weight can be read."""
    children = dict(attention.named_children())
    projection = next((children[name] for name in _NAMES if name in children), None)
    if projection is None:
        raise ModelError(
            f"{type(attention).__name__} has no output projection that winnow knows ({', '.join(_NAMES)}). {_REMEDY}"
        )
    readable = has_matrix(projection)
    if not readable or any(parameter.is_meta for parameter in projection.parameters(recurse=False)):
        state = "is offloaded" if readable else "has no plain weight (quantized or fused?)"
        raise ModelError(f"{_name(attention, projection)} {state}, so its matrix cannot be read. {_REMEDY}")
    return projection


def _computes(projection: nn.Module, inputs: Tensor, matrix: Tensor) -> bool:
    """True if the projection of inputs [2, Hq·Dv], the second one zero, differs by what the matrix says."""
    # `forward` and not a call: hooks that someone put on the module are not meant for this.
    with torch.no_grad():
        output, bias = projection.forward(inputs)
        expected = inputs[0] @ matrix
    tolerance = 4 * torch.finfo(matrix.dtype).eps * (expected.norm() + bias.norm())
    return bool((output - bias - expected).norm() <= tolerance)


def _name(attention: nn.Module, projection: nn.Module) -> str:
    return f"the output projection of {type(attention).__name__} ({type(projection).__name__})"
