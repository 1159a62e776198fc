"""Speed of decode attention over packed prefixes, next to a dense one of as many slots.

One run, one machine, one step of decoding at a time. Every format is measured in turn with a read-only pass over its
own tensors and with dense attention in the same dtype; a ratio is the median of the ratios of the rounds.

    python benchmarks/packed_attention.py [--megabytes 512] [--rounds 61] [--json]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from decode_attention import GROUP, HEADS, Row, even_slots, make_layer, measure, name_of, spec, write_tables
from winnow.kernels import DecodePlan, PackedBlock, TailSegments, native
from winnow.kernels.formats.bits import row_bytes
from winnow.kernels.formats.entries import Entries
from winnow.kernels.formats.packed import PackedKeys, PackedValues
from winnow.kernels.formats.pruned import Pruned

DIM = 128
DTYPE = torch.bfloat16
PATTERNS = 4096
"""Different masks; further slots repeat them."""


class Format(NamedTuple):
    """The entries of a block's keys and values, as functions of the slots."""

    keys: Callable[[int], PackedKeys]
    values: Callable[[int], PackedValues]


def entries(slots: int, count: int, bits: int) -> Entries:
    """Random numbers, with one scale per slot where they are integers."""
    if bits == 16:
        return Entries(torch.randn(slots, count, dtype=DTYPE), 16)
    data = torch.randint(256, (slots, row_bytes(count, bits)), dtype=torch.uint8)
    return Entries(data, bits, torch.rand(slots).to(DTYPE) / (1 << (bits - 1)))


def grouped(slots: int, groups: tuple[int, int], bits: int) -> Entries:
    """Random numbers with scales and zeros of groups."""
    scales, zeros = torch.rand(groups).to(DTYPE) / (1 << bits), torch.randn(groups).to(DTYPE)
    return Entries(entries(slots, DIM, bits).data, bits, scales, zeros)


def whole_keys(bits: int) -> Callable[[int], PackedKeys]:
    """All channels, one scale per slot."""
    return lambda slots: PackedKeys(DIM, entries(slots, DIM, bits))


def whole_values(bits: int) -> Callable[[int], PackedValues]:
    """All channels, one scale per slot."""
    return lambda slots: PackedValues(DIM, entries(slots, DIM, bits))


def rotated(keys: int, values: int, centered: bool = False) -> Format:
    """All channels after a Walsh–Hadamard transform, keys without their mean."""
    return Format(
        lambda slots: PackedKeys(
            DIM,
            entries(slots, DIM, keys),
            rotated=True,
            means=torch.randn(HEADS, DIM).to(DTYPE) if centered else None,
        ),
        lambda slots: PackedValues(DIM, entries(slots, DIM, values), rotated=True),
    )


def kivi(bits: int) -> Format:
    """Keys in groups of 32 slots per channel, values in groups of 32 channels per slot."""
    return Format(
        lambda slots: PackedKeys(DIM, grouped(slots, (slots // 32, DIM), bits)),
        lambda slots: PackedValues(DIM, grouped(slots, (slots, DIM // 32), bits)),
    )


def spark(pruned: float, bits: int = 16) -> Callable[[int], PackedKeys]:
    """Keys without a share of their channels, chosen per slot; means and signs stand for them."""
    kept = DIM - round(pruned * DIM)

    def keys(slots: int) -> PackedKeys:
        flags = torch.zeros(PATTERNS, DIM, dtype=torch.uint8)
        flags.scatter_(1, torch.rand(PATTERNS, DIM).argsort(1)[:, :kept], 1)
        bytes_ = (flags.view(PATTERNS, -1, 8) << torch.arange(8, dtype=torch.uint8)).sum(-1, dtype=torch.uint8)
        masks = bytes_.repeat(-(-slots // PATTERNS), 1)[:slots].contiguous()
        signs = torch.randint(256, (slots, -(-(DIM - kept) // 8)), dtype=torch.uint8)
        norms = torch.rand(HEADS, DIM) + 0.5
        return PackedKeys(
            DIM, entries(slots, kept, bits), pruned=Pruned(masks, torch.rand(slots, 1).to(DTYPE), signs, norms)
        )

    return keys


def think(pruned: float) -> Callable[[int], PackedKeys]:
    """Keys without a share of their channels, chosen per head."""
    kept = DIM - round(pruned * DIM)
    channels = torch.stack([torch.randperm(DIM)[:kept].msort() for _ in range(HEADS)]).to(torch.int16)
    return lambda slots: PackedKeys(DIM, entries(slots, kept, 16), channels)


def formats() -> dict[str, Format]:
    """Formats to measure, by name."""
    return {
        "8 bits": Format(whole_keys(8), whole_values(8)),
        "4 bits": Format(whole_keys(4), whole_values(4)),
        "2 bits": Format(whole_keys(2), whole_values(2)),
        "8 bits, rotated": rotated(8, 8),
        "4 bits, rotated": rotated(4, 4),
        "2 bits, rotated": rotated(2, 2),
        "4 bits, rotated and centered": rotated(4, 4, centered=True),
        "keys 8 bits, values 4 bits": Format(whole_keys(8), whole_values(4)),
        "keys 8 bits, values 4 bits, rotated": rotated(8, 4),
        "KIVI, 4 bits": kivi(4),
        "KIVI, 2 bits": kivi(2),
        "SPARK 0.5": Format(spark(0.5), whole_values(16)),
        "SPARK 0.8": Format(spark(0.8), whole_values(16)),
        "SPARK 0.8, values 8 bits": Format(spark(0.8), whole_values(8)),
        "SPARK 0.8 at 8 bits, values 8 bits": Format(spark(0.8, 8), whole_values(8)),
        "ThinK 0.5": Format(think(0.5), whole_values(16)),
    }


def tensors_of(block: PackedBlock) -> list[Tensor]:
    """Everything that attention reads once per slot."""
    found: list[Tensor | None] = []
    for rows in (block.keys, block.values):
        found += [rows.entries.data, rows.entries.scales, rows.entries.zeros]
        if rows.pruned is not None:
            found += [rows.pruned.masks, rows.pruned.stats, rows.pruned.signs]
    return [tensor for tensor in found if tensor is not None]


def plan_for(block: PackedBlock) -> DecodePlan:
    """Attention over the block alone."""
    empty = torch.empty(1, HEADS, 0, DIM, dtype=DTYPE)
    return DecodePlan([block], TailSegments(empty, empty, torch.zeros(1, dtype=torch.int64)), spec(DIM))


def compare(threads: list[int], rounds: int, slots: int, wanted: list[str]) -> list[Row]:
    """Every format with every number of threads."""
    dense = make_layer([slots] * HEADS, DIM, DTYPE)
    dense_bytes = dense.prefix.keys.nbytes + dense.prefix.values.nbytes
    rows: list[Row] = []

    def add(name: str, run: Callable[[], object], read: Callable[[], object], size: int) -> None:
        for count in threads:
            torch.set_num_threads(count)
            bench = measure({"read": read, "attend": run, "dense": dense.run}, rounds)
            rows.append(
                {
                    "threads": count,
                    "format": name,
                    "bytes per slot": size / (slots * HEADS),
                    "attend ms": bench.median("attend") * 1e3,
                    "read GB/s": size / bench.median("read") / 1e9,
                    "fraction of read": bench.ratio("read", "attend"),
                    "times as fast as dense": bench.ratio("dense", "attend"),
                }
            )

    add("dense", dense.run, dense.read, dense_bytes)
    for name, form in formats().items():
        if wanted and name not in wanted:
            continue
        offsets = torch.arange(HEADS + 1) * slots
        block = PackedBlock(form.keys(slots * HEADS), form.values(slots * HEADS), offsets, DTYPE)
        tensors = tensors_of(block)
        plan = plan_for(block)

        def read(tensors: list[Tensor] = tensors) -> None:
            for tensor in tensors:
                native.read_sum(tensor)

        def run(plan: DecodePlan = plan) -> Tensor:
            return plan.run(dense.query)

        add(name, run, read, sum(block.bytes().values()))
    return sorted(rows, key=lambda row: threads.index(int(str(row["threads"]))))


def main() -> None:
    """Parse arguments, run, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=512, help="keys and values of as many dense slots")
    parser.add_argument("--rounds", type=int, default=61)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--formats", nargs="+", default=[], help="only these")
    parser.add_argument("--out", type=Path, default=Path("docs/results"), help="folder for the .json and .md")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    options = parser.parse_args()
    torch.manual_seed(0)
    slots = even_slots(options.megabytes, DIM, DTYPE)
    settings: dict[str, object] = {
        "slots per head": slots,
        "rounds": options.rounds,
        "H": HEADS,
        "G": GROUP,
        "D": DIM,
        "dtype": name_of(DTYPE),
    }
    tables = {"Packed prefixes": compare(options.threads, options.rounds, slots, options.formats)}
    title = "Decode attention from packed prefixes"
    text, data = write_tables(options.out, "packed_attention", title, settings, tables)
    print(data if options.json else text)


if __name__ == "__main__":
    main()
