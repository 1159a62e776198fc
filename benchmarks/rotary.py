"""Rotary embedding of a token and of prompts: a model's own, of sixteen operators, against Winnow's, of one.

    python benchmarks/rotary.py        # writes docs/results/rotary-VENDOR.*

Time of one thread. As many layers as a model has take turns.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial

import torch
from torch import Tensor
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from reporting import machine, markdown_table, of_this_vendor, rounds_and_folder, write_results
from winnow.models.rotary import RotaryByKernel
from within_steps import ABOUT, HEADS, OWN, WINNOWS, Seconds, cells, in_turns

SHAPES = ((14, 2, 64), (12, 2, 128), (32, 8, 128))
"""Query heads, KV heads and channels of models of 0.5B, 1.5B and 8B."""
DTYPES = {torch.bfloat16: "bfloat16", torch.float32: "float32"}
TOKENS = (1, 16, 2048)
LAYERS = 24


@dataclass(frozen=True)
class Timed:
    """Seconds of a layer's queries and keys, by whose it is: after a read, and once more without one between."""

    dtype: str
    heads: str
    tokens: int
    after_a_read: Seconds
    again: Seconds


def measure(dtype: torch.dtype, shape: tuple[int, int, int], tokens: int, rounds: int) -> Timed:
    """One shape with one number of tokens."""
    heads, kv_heads, dim = shape
    given = (*(_projected(each, tokens, dim, dtype) for each in (heads, kv_heads)), *_angles(tokens, dim, dtype))
    functions = {OWN: apply_rotary_pos_emb, WINNOWS: RotaryByKernel(apply_rotary_pos_emb)}
    calls = {name: [partial(function, *given)] * LAYERS for name, function in functions.items()}
    return Timed(DTYPES[dtype], f"{heads}/{kv_heads}, D {dim}", tokens, *in_turns(calls, rounds))


def _projected(heads: int, tokens: int, dim: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(1, tokens, heads, dim).to(dtype).transpose(1, 2)


def _angles(tokens: int, dim: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    angles = torch.rand(1, tokens, dim // 2).repeat(1, 1, 2)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def row(timed: Timed) -> list[str]:
    """A line of the table."""
    return [timed.dtype, timed.heads, f"{timed.tokens:,}", *cells(timed.after_a_read, timed.again)]


@torch.no_grad()
def main() -> None:
    """Measures and writes the table."""
    options = rounds_and_folder(__doc__, rounds=5)
    torch.set_num_threads(1)
    cases = [(dtype, shape, tokens) for dtype in DTYPES for shape in SHAPES for tokens in TOKENS]
    records = [measure(*case, options.rounds) for case in cases]
    table = markdown_table(["type", "heads", "tokens", *HEADS], [row(record) for record in records])
    print(table)
    about = (
        f"# Rotary embedding\n\n`python benchmarks/rotary.py`. {machine()} Time of a layer's queries and keys: "
        f"transformers' `apply_rotary_pos_emb` of Llama against the kernel. {LAYERS} calls of each took turns, "
        f"{ABOUT}\n\n"
    )
    write_results(options.out, of_this_vendor("rotary"), about + table + "\n", [asdict(record) for record in records])


if __name__ == "__main__":
    main()
