"""Norms of few and of many rows: a model's own, of eight operators, against Winnow's, of one.

    python benchmarks/norms.py        # writes docs/results/norms-VENDOR.*

Time of one thread. As many norms as a model has take turns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial

import torch
from torch import Tensor
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from reporting import machine, markdown_table, of_this_vendor, rounds_and_folder, write_results
from winnow.models.norms import CompiledRMSNorm
from within_steps import ABOUT, HEADS, OWN, WINNOWS, Seconds, cells, in_turns

WIDTHS = (128, 896, 1536, 4096)
"""Numbers of a row: of a head, and of the tokens of models of 0.5B, 1.5B and 8B."""
DTYPES = {torch.bfloat16: "bfloat16", torch.float32: "float32"}
ROWS = (1, 16, 2048)
NORMS = 49
"""Norms of a model of 24 layers."""


@dataclass(frozen=True)
class Timed:
    """Seconds of a norm, by whose it is: after a read, and once more without one between."""

    dtype: str
    width: int
    rows: int
    after_a_read: Seconds
    again: Seconds


def measure(dtype: torch.dtype, width: int, rows: int, rounds: int) -> Timed:
    """One width with one number of rows."""
    owns = [LlamaRMSNorm(width).to(dtype) for _ in range(NORMS)]
    norms: dict[str, list[Callable[[Tensor], Tensor]]] = {
        OWN: list(owns),
        WINNOWS: [CompiledRMSNorm(norm) for norm in owns],
    }
    given = torch.randn(1, rows, width).to(dtype)
    calls = {name: [partial(norm, given) for norm in each] for name, each in norms.items()}
    return Timed(DTYPES[dtype], width, rows, *in_turns(calls, rounds))


def row(timed: Timed) -> list[str]:
    """A line of the table."""
    return [timed.dtype, f"{timed.width:,}", f"{timed.rows:,}", *cells(timed.after_a_read, timed.again)]


@torch.no_grad()
def main() -> None:
    """Measures and writes the table."""
    options = rounds_and_folder(__doc__, rounds=5)
    torch.set_num_threads(1)
    cases = [(dtype, width, rows) for dtype in DTYPES for width in WIDTHS for rows in ROWS]
    records = [measure(*case, options.rounds) for case in cases]
    table = markdown_table(["type", "width", "rows", *HEADS], [row(record) for record in records])
    print(table)
    about = (
        f"# Norms\n\n`python benchmarks/norms.py`. {machine()} Time of an RMS norm of rows of so many numbers: "
        f"transformers' `LlamaRMSNorm` against `CompiledRMSNorm`. {NORMS} norms of each took turns, {ABOUT}\n\n"
    )
    write_results(options.out, of_this_vendor("norms"), about + table + "\n", [asdict(record) for record in records])


if __name__ == "__main__":
    main()
