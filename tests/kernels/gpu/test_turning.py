"""Rows turned by a kernel against the definition of the transform, and queries prepared by it, in float64."""

from __future__ import annotations

import pytest
import torch

from support.gpu import DEVICE, TOLERANCE
from winnow.kernels.formats.hadamard import hadamard_block

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")


def matrix(dim: int) -> torch.Tensor:
    """[D, D]: Sylvester's matrix for every block of channels, (-1)^(bits that i and j share)."""
    block = hadamard_block(dim)
    found = torch.zeros(dim, dim, dtype=torch.float64)
    for i in range(dim):
        for j in range(dim):
            if i // block == j // block:
                found[i, j] = (-1) ** ((i % block) & (j % block)).bit_count() / block**0.5
    return found


@pytest.mark.parametrize("dim", [16, 64, 80, 96, 33])
def test_queries_are_smoothed_turned_and_their_bias_told(dim: int) -> None:
    from winnow.kernels.gpu.asking import ASKED_COLUMNS, prepare_queries
    from winnow.kernels.gpu.launching import asking
    from winnow.kernels.gpu.tiles import tile_width
    from winnow.kernels.gpu.turning import turn_of

    rows, heads, group, tokens = 2, 2, 3, 2
    generator = torch.Generator().manual_seed(dim)
    query = torch.randn(rows, heads * group, tokens, dim, generator=generator).to(DEVICE)
    means, spreads = (torch.randn(heads, dim, generator=generator).to(DEVICE) for _ in range(2))
    table = [[1, means.data_ptr(), 0, 1], [0, 0, spreads.data_ptr(), 0], [1, means.data_ptr(), spreads.data_ptr(), 1]]
    asked = torch.full((3, heads * group, tokens, dim), torch.nan, device=DEVICE)
    bias = torch.full((3, heads * group, tokens), torch.nan, device=DEVICE)
    sizes, (steps, factor) = asking(group * tokens), turn_of(dim)
    prepare_queries[(3, heads, sizes.blocks)](
        torch.tensor(table, device=DEVICE),
        *(query, *query.stride()[:3], asked, bias, heads, group, tokens),
        ELEMENT=tl.float32,
        DIM=dim,
        WIDE=tile_width(dim),
        ASKED=sizes.asked,
        COLUMNS=ASKED_COLUMNS,
        STEPS=steps,
        FACTOR=factor,
    )
    head = torch.arange(heads * group) // group
    mean, spread = (each.double().cpu()[head][:, None] for each in (means, spreads))
    model = query.double().cpu()
    turned = [model[1] @ matrix(dim), model[0] * spread, (model[1] * spread) @ matrix(dim)]
    subtracted = [(model[1] * mean).sum(-1), torch.zeros(heads * group, tokens), (model[1] * mean).sum(-1)]
    relative, absolute = TOLERANCE[torch.float32]
    for found, expected in ((asked, turned), (bias, subtracted)):
        wanted = torch.stack(expected).double()
        torch.testing.assert_close(found.cpu().double(), wanted, rtol=relative, atol=absolute)
