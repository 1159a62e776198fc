"""Rotary embedding of a token and of prompts: a model's own, of sixteen operators, against Winnow's, of one.

    python benchmarks/rotary.py        # writes docs/results/rotary-VENDOR.*

Time of one thread. As many layers as a model has take turns.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from reporting import DTYPES, rounds_and_folder
from winnow.kernels.rotary import HALVES
from winnow.models.rotary import RotaryByKernel
from within_steps import Timed, in_turns, publish

SHAPES = ((14, 2, 64), (12, 2, 128), (32, 8, 128))
"""Query heads, KV heads and channels of models of 0.5B, 1.5B and 8B."""
TOKENS = (1, 16, 2048)
LAYERS = 24


def measure(dtype: torch.dtype, shape: tuple[int, int, int], tokens: int, rounds: int) -> Timed:
    """One shape with one number of tokens."""
    heads, kv_heads, dim = shape
    given = (*(_projected(each, tokens, dim, dtype) for each in (heads, kv_heads)), *_angles(tokens, dim, dtype))
    case = {"type": DTYPES[dtype], "heads": f"{heads}/{kv_heads}, D {dim}", "tokens": f"{tokens:,}"}
    own = [partial(apply_rotary_pos_emb, *given)] * LAYERS
    return in_turns(case, own, [partial(RotaryByKernel(apply_rotary_pos_emb, HALVES), *given)] * LAYERS, rounds)


def _projected(heads: int, tokens: int, dim: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(1, tokens, heads, dim).to(dtype).transpose(1, 2)


def _angles(tokens: int, dim: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    angles = torch.rand(1, tokens, dim // 2).repeat(1, 1, 2)
    return angles.cos().to(dtype), angles.sin().to(dtype)


@torch.no_grad()
def main() -> None:
    """Measures and writes the table."""
    options = rounds_and_folder(__doc__, rounds=5)
    torch.set_num_threads(1)
    found = [measure(dtype, shape, tokens, options.rounds) for dtype in DTYPES for shape in SHAPES for tokens in TOKENS]
    about = (
        "Time of a layer's queries and keys: transformers' `apply_rotary_pos_emb` of Llama against the kernel. "
        f"{LAYERS} calls of each took turns"
    )
    publish("rotary", "Rotary embedding", about, found, options)


if __name__ == "__main__":
    main()
