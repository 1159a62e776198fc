"""Layers of random scores with many ties, for properties of allocators."""

from __future__ import annotations

import torch
from hypothesis import strategies as st


@st.composite
def layers(draw: st.DrawFn) -> tuple[torch.Tensor, int, int]:
    heads, length = draw(st.integers(1, 6)), draw(st.integers(1, 30))
    guaranteed = draw(st.integers(0, length))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    values = draw(st.sampled_from([1, 2, 5, 1 << 20]))  # few values: many ties
    scores = torch.randint(0, values, (heads, length), generator=generator) / values
    scores[:, length - guaranteed :] = torch.inf
    return scores, guaranteed, draw(st.integers(heads * guaranteed, heads * length))
