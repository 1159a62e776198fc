"""Norms of few and of many rows: a model's own, of eight operators, against Winnow's, of one.

    python benchmarks/norms.py        # writes docs/results/norms-VENDOR.*

Time of one thread. As many norms as a model has take turns, each after a read of as much memory as a layer's weights
take: that is what pushes Python's own memory out of the caches between two norms of a token. Medians count.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median

import torch
from torch import Tensor
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from reporting import machine, markdown_table, of_this_vendor, rounds_and_folder, write_results
from winnow.kernels.native import read_sum
from winnow.models.norms import CompiledRMSNorm

WIDTHS = (128, 896, 1536, 4096)
"""Numbers of a row: of a head, and of the tokens of models of 0.5B, 1.5B and 8B."""
DTYPES = {torch.bfloat16: "bfloat16", torch.float32: "float32"}
ROWS = (1, 16, 2048)
NORMS = 49
"""Norms of a model of 24 layers."""
BETWEEN = 16 << 20
"""Bytes that are read between two norms."""
OWN, WINNOWS = "a model's own", "Winnow's"

Norm = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Timed:
    """Seconds of a norm, by whose it is: after a read, and once more without one between."""

    dtype: str
    width: int
    rows: int
    after_a_read: dict[str, float]
    again: dict[str, float]


def measure(dtype: torch.dtype, width: int, rows: int, rounds: int, weights: Tensor) -> Timed:
    """One width with one number of rows; a round before the first is not counted."""
    owns = [LlamaRMSNorm(width).to(dtype) for _ in range(NORMS)]
    norms: dict[str, list[Norm]] = {OWN: list(owns), WINNOWS: [CompiledRMSNorm(norm) for norm in owns]}
    given = torch.randn(1, rows, width).to(dtype)
    first: dict[str, list[float]] = {name: [] for name in norms}
    again: dict[str, list[float]] = {name: [] for name in norms}
    for number in range(rounds + 1):
        for name, each in norms.items():
            for norm in each:
                read_sum(weights)
                spent = seconds_of(norm, given), seconds_of(norm, given)
                if number:
                    first[name].append(spent[0])
                    again[name].append(spent[1])
    return Timed(DTYPES[dtype], width, rows, _medians(first), _medians(again))


def seconds_of(norm: Norm, given: Tensor) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    norm(given)
    return time.perf_counter() - start


def _medians(times: dict[str, list[float]]) -> dict[str, float]:
    return {name: median(taken) for name, taken in times.items()}


def row(timed: Timed) -> list[str]:
    """A line of the table."""
    cells = []
    for seconds in (timed.after_a_read, timed.again):
        own, ours = seconds[OWN], seconds[WINNOWS]
        cells += [f"{1e6 * own:,.1f} µs", f"{1e6 * ours:,.1f} µs, {own / ours:.2f}x"]
    return [timed.dtype, f"{timed.width:,}", f"{timed.rows:,}", *cells]


@torch.no_grad()
def main() -> None:
    """Measures and writes the table."""
    options = rounds_and_folder(__doc__, rounds=5)
    torch.set_num_threads(1)
    weights = torch.ones(BETWEEN, dtype=torch.uint8)
    cases = [(dtype, width, rows) for dtype in DTYPES for width in WIDTHS for rows in ROWS]
    records = [measure(*case, options.rounds, weights) for case in cases]
    timed = [f"{whose}, {when}" for when in ("after a read", "again") for whose in (OWN, WINNOWS)]
    header = ["type", "width", "rows", *timed]
    table = markdown_table(header, [row(record) for record in records])
    print(table)
    about = (
        f"# Norms\n\n`python benchmarks/norms.py`. {machine()} Time of an RMS norm of rows of so many numbers: "
        f"transformers' `LlamaRMSNorm` against `CompiledRMSNorm`. {NORMS} norms of each took turns, each after a read "
        f"of {BETWEEN >> 20} MB, as a layer's weights are read between two norms of a token, and once more without. "
        "Above 1x is faster than a model's own.\n\n"
    )
    write_results(options.out, of_this_vendor("norms"), about + table + "\n", [asdict(record) for record in records])


if __name__ == "__main__":
    main()
