"""Speed of decode attention of rows that share a prefix, next to the same rows with copies of their own.

One run, one machine, one step of decoding at a time. Rows that share a prefix and rows with copies take turns; a ratio
is the median of the ratios of the rounds.

    python benchmarks/shared_prefix.py [--slots 4096 32768] [--rounds 15] [--threads 1 2] [--json]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from decode_attention import Row, spec, write_tables
from packed_attention import entries
from reporting import name_of, of_this_processor
from rounds import measure
from winnow.kernels import DecodePlan, DenseBlock, PackedBlock, TailSegments
from winnow.kernels.formats.packed import PackedKeys, PackedValues

ROWS = (8, 32)
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
TAIL = 32
Part = DenseBlock | PackedBlock


class Shape(NamedTuple):
    """KV heads, query heads of each, and their dimension."""

    heads: int
    group: int
    dim: int


SHAPES = [Shape(2, 1, 128), Shape(2, 4, 128), Shape(2, 7, 64)]
FORMATS: dict[str, tuple[torch.dtype, int]] = {
    "fp32": (torch.float32, 16),
    "bf16": (torch.bfloat16, 16),
    "8 bits": (torch.bfloat16, 8),
    "4 bits": (torch.bfloat16, 4),
}
"""Formats by name: the model's dtype, and bits of keys and values (16: as they are)."""


def make_block(shape: Shape, name: str, slots: int) -> Part:
    """A prefix whose heads hold `slots` tokens."""
    (dtype, bits), total, dim = FORMATS[name], slots * shape.heads, shape.dim
    offsets = torch.arange(shape.heads + 1) * slots
    if bits == 16:
        return DenseBlock(torch.randn(total, dim).to(dtype), torch.randn(total, dim).to(dtype), offsets)
    keys, values = (entries(total, dim, bits) for _ in range(2))
    return PackedBlock(PackedKeys(dim, keys), PackedValues(dim, values), offsets, dtype)


def copied(block: Part) -> Part:
    """The same numbers in memory of their own."""
    if isinstance(block, DenseBlock):
        return DenseBlock(block.keys.clone(), block.values.clone(), block.offsets)
    keys, values = (replace(side.entries, data=side.entries.data.clone()) for side in (block.keys, block.values))
    return replace(block, keys=replace(block.keys, entries=keys), values=replace(block.values, entries=values))


class Rows(NamedTuple):
    """Rows of one step, and the plan that attends for them."""

    plan: DecodePlan
    query: Tensor

    def run(self) -> Tensor:
        """One decode step."""
        return self.plan.run(self.query)


def make_rows(shape: Shape, blocks: list[Part]) -> Rows:
    """A row for each block, with a short tail."""
    generator = torch.Generator().manual_seed(len(blocks))

    def random(*sizes: int) -> Tensor:
        return torch.randn(*sizes, generator=generator).to(blocks[0].dtype)

    count, (heads, group, dim) = len(blocks), shape
    keys, values = (random(count, heads, TAIL, dim) for _ in range(2))
    tail = TailSegments(keys, values, torch.full((count,), TAIL))
    return Rows(DecodePlan(blocks, tail, spec(dim)), random(count, heads * group, 1, dim))


def compare(shape: Shape, name: str, slots: int, rounds: int, clock: Callable[[], float]) -> Row:
    """One row, and for every number of rows the time together and how much longer it takes apart."""
    block = make_block(shape, name, slots)
    one = make_rows(shape, [block])
    row: Row = {"KV heads": shape.heads, "G": shape.group, "D": shape.dim, "format": name, "slots": slots}
    for count in ROWS:
        together = make_rows(shape, [block] * count)
        alone = make_rows(shape, [copied(block) for _ in range(count)])
        torch.testing.assert_close(together.run().float(), alone.run().float(), rtol=2**-7, atol=1e-3)
        bench = measure({"one": one.run, "together": together.run, "apart": alone.run}, rounds, clock)
        row |= {
            "1 row ms": bench.median("one") * 1e3,
            f"{count} rows ms": bench.median("together") * 1e3,
            f"{count} rows apart / together": bench.ratio("apart", "together"),
        }
    return row


def main() -> None:
    """Parse arguments, run, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slots", type=int, nargs="+", default=[4096, 32768], help="slots of a KV head's prefix")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=list(FORMATS))
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="cpu: of all threads, for a busy machine")
    parser.add_argument("--out", type=Path, default=Path("docs/results"), help="folder for the .json and .md")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    options = parser.parse_args()
    torch.manual_seed(0)
    tables: dict[str, list[Row]] = {}
    for count in options.threads:
        torch.set_num_threads(count)
        for slots in options.slots:
            for shape in SHAPES:
                for name in options.formats:
                    row = compare(shape, name, slots, options.rounds, CLOCKS[options.clock])
                    tables.setdefault("Rows that share a prefix", []).append({"threads": count, **row})
    settings: dict[str, object] = {
        "rounds": options.rounds,
        "clock": options.clock,
        "tail": TAIL,
        "dtype of 8 and 4 bits": name_of(torch.bfloat16),
    }
    text, data = write_tables(
        options.out, of_this_processor("shared_prefix"), "Rows that share a prefix", settings, tables
    )
    print(data if options.json else text)


if __name__ == "__main__":
    main()
