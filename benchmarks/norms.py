"""Norms of few and of many rows: a model's own, of eight operators, against Winnow's, of one.

    python benchmarks/norms.py        # writes docs/results/norms-VENDOR.*

Time of one thread. As many norms as a model has take turns.
"""

from __future__ import annotations

from functools import partial
from itertools import product

import torch
from torch import nn
from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from reporting import DTYPES, rounds_and_folder
from winnow.models.norms import CompiledRMSNorm, form_of
from within_steps import Timed, in_turns, publish

KINDS = {"Llama's": LlamaRMSNorm, "Gemma's": Gemma2RMSNorm}
WIDTHS = (128, 896, 1536, 4096)
"""Numbers of a row: of a head, and of the tokens of models of 0.5B, 1.5B and 8B."""
ROWS = (1, 16, 2048)
NORMS = 49
"""Norms of a model of 24 layers."""


def measure(kind: str, dtype: torch.dtype, width: int, rows: int, rounds: int) -> Timed:
    """Norms of a kind: one width with one number of rows."""
    norms: list[nn.Module] = [KINDS[kind](width).to(dtype) for _ in range(NORMS)]
    given = torch.randn(1, rows, width).to(dtype)
    case = {"norm": kind, "type": DTYPES[dtype], "width": f"{width:,}", "rows": f"{rows:,}"}
    form = form_of(norms[0])
    if form is None:
        raise SystemExit(f"The kernels do not compute what {type(norms[0]).__name__} does here.")
    ours = [partial(CompiledRMSNorm(norm, form), given) for norm in norms]
    return in_turns(case, [partial(norm, given) for norm in norms], ours, rounds)


@torch.no_grad()
def main() -> None:
    """Measures and writes the table."""
    options = rounds_and_folder(__doc__, rounds=5)
    torch.set_num_threads(1)
    cases = product(KINDS, DTYPES, WIDTHS, ROWS)
    found = [measure(kind, dtype, width, rows, options.rounds) for kind, dtype, width, rows in cases]
    about = (
        "Time of an RMS norm of rows of so many numbers: transformers' `LlamaRMSNorm` and `Gemma2RMSNorm` against "
        "`CompiledRMSNorm`. "
        f"{NORMS} norms of each took turns"
    )
    publish("norms", "Norms", about, found, options)


if __name__ == "__main__":
    main()
