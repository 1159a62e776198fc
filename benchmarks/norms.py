"""Norms of few and of many rows: a model's own, of eight operators, against Winnow's, of one.

    python benchmarks/norms.py        # writes docs/results/norms-VENDOR.*

Time of one thread. As many norms as a model has take turns.
"""

from __future__ import annotations

from functools import partial

import torch
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from reporting import DTYPES, rounds_and_folder
from winnow.models.norms import CompiledRMSNorm
from within_steps import Timed, in_turns, publish

WIDTHS = (128, 896, 1536, 4096)
"""Numbers of a row: of a head, and of the tokens of models of 0.5B, 1.5B and 8B."""
ROWS = (1, 16, 2048)
NORMS = 49
"""Norms of a model of 24 layers."""


def measure(dtype: torch.dtype, width: int, rows: int, rounds: int) -> Timed:
    """One width with one number of rows."""
    norms = [LlamaRMSNorm(width).to(dtype) for _ in range(NORMS)]
    given = torch.randn(1, rows, width).to(dtype)
    case = {"type": DTYPES[dtype], "width": f"{width:,}", "rows": f"{rows:,}"}
    ours = [partial(CompiledRMSNorm(norm), given) for norm in norms]
    return in_turns(case, [partial(norm, given) for norm in norms], ours, rounds)


@torch.no_grad()
def main() -> None:
    """Measures and writes the table."""
    options = rounds_and_folder(__doc__, rounds=5)
    torch.set_num_threads(1)
    found = [measure(dtype, width, rows, options.rounds) for dtype in DTYPES for width in WIDTHS for rows in ROWS]
    about = (
        "Time of an RMS norm of rows of so many numbers: transformers' `LlamaRMSNorm` against `CompiledRMSNorm`. "
        f"{NORMS} norms of each took turns"
    )
    publish("norms", "Norms", about, found, options)


if __name__ == "__main__":
    main()
