"""Speed of decode attention over packed prefixes, next to a dense one of as many slots.

One run, one machine, one step of decoding at a time. Every format is measured in turn with a read-only pass over its
own tensors and with dense attention in the same dtype; a ratio is the median of the ratios of the rounds. Then the same
formats over few slots, with one thread. Three minutes on an idle machine.

    python benchmarks/packed_attention.py [--megabytes 128] [--rounds 11] [--dims 64 128] [--groups 1 4 7 8]
        [--steepness 1] [--json]

Results have a page for each vendor of processors, so that a run on one leaves the other's figures alone.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from decode_attention import (
    GROUPS,
    HEADS,
    Row,
    even_slots,
    has_limit,
    make_layer,
    of_limit,
    spec,
    write_tables,
)
from reporting import name_of, of_this_processor
from reporting import threads as threads_in_words
from rounds import measure
from winnow.kernels import DecodePlan, PackedBlock, TailSegments, native
from winnow.kernels.formats.bits import row_bytes
from winnow.kernels.formats.entries import Entries
from winnow.kernels.formats.packed import PackedKeys, PackedValues
from winnow.kernels.formats.pruned import Pruned

DTYPE = torch.bfloat16
PATTERNS = 4096
"""Different masks; further slots repeat them."""
FEW_SLOTS = [64, 256, 1024]
"""Slots of a head as eviction leaves them."""
REPEATS = 100
"""Steps over few slots that are timed together."""


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


def grouped(dim: int, slots: int, groups: tuple[int, int], bits: int) -> Entries:
    """Random numbers with scales and zeros of groups."""
    scales, zeros = torch.rand(groups).to(DTYPE) / (1 << bits), torch.randn(groups).to(DTYPE)
    return Entries(entries(slots, dim, bits).data, bits, scales, zeros)


def by_channels(dim: int, slots: int, group: int, bits: int) -> Entries:
    """Random numbers with a scale for every group of channels of a slot."""
    scales = torch.rand(slots, dim // group).to(DTYPE) / (1 << (bits - 1))
    return Entries(entries(slots, dim, bits).data, bits, scales, group=group)


def whole_keys(dim: int, bits: int) -> Callable[[int], PackedKeys]:
    """All channels, one scale per slot."""
    return lambda slots: PackedKeys(dim, entries(slots, dim, bits))


def whole_values(dim: int, bits: int) -> Callable[[int], PackedValues]:
    """All channels, one scale per slot."""
    return lambda slots: PackedValues(dim, entries(slots, dim, bits))


def rotated(dim: int, keys: int, values: int, of_heads: bool = False) -> Format:
    """All channels after a Walsh–Hadamard transform, keys without the means and spreads of their heads."""
    return Format(
        lambda slots: PackedKeys(
            dim,
            entries(slots, dim, keys),
            rotated=True,
            means=torch.randn(HEADS, dim).to(DTYPE) if of_heads else None,
            spreads=(torch.rand(HEADS, dim) + 0.5).to(DTYPE) if of_heads else None,
        ),
        lambda slots: PackedValues(dim, entries(slots, dim, values), rotated=True),
    )


def groups(dim: int, bits: int, group: int) -> Format:
    """All channels, one scale per group of them in every slot."""
    return Format(
        lambda slots: PackedKeys(dim, by_channels(dim, slots, group, bits)),
        lambda slots: PackedValues(dim, by_channels(dim, slots, group, bits)),
    )


def kivi(dim: int, bits: int) -> Format:
    """Keys in groups of 32 slots per channel, values in groups of 32 channels per slot."""
    return Format(
        lambda slots: PackedKeys(dim, grouped(dim, slots, (slots // 32, dim), bits)),
        lambda slots: PackedValues(dim, grouped(dim, slots, (slots, dim // 32), bits)),
    )


def spark(dim: int, pruned: float, bits: int = 16) -> Callable[[int], PackedKeys]:
    """Keys without a share of their channels, chosen per slot; means and signs stand for them."""
    kept = dim - round(pruned * dim)

    def keys(slots: int) -> PackedKeys:
        flags = torch.zeros(PATTERNS, dim, dtype=torch.uint8)
        flags.scatter_(1, torch.rand(PATTERNS, dim).argsort(1)[:, :kept], 1)
        bytes_ = (flags.view(PATTERNS, -1, 8) << torch.arange(8, dtype=torch.uint8)).sum(-1, dtype=torch.uint8)
        masks = bytes_.repeat(-(-slots // PATTERNS), 1)[:slots].contiguous()
        signs = torch.randint(256, (slots, -(-(dim - kept) // 8)), dtype=torch.uint8)
        norms = torch.rand(HEADS, dim) + 0.5
        return PackedKeys(
            dim, entries(slots, kept, bits), pruned=Pruned(masks, torch.rand(slots, 1).to(DTYPE), signs, norms)
        )

    return keys


def think(dim: int, pruned: float) -> Callable[[int], PackedKeys]:
    """Keys without a share of their channels, chosen per head."""
    kept = dim - round(pruned * dim)
    channels = torch.stack([torch.randperm(dim)[:kept].msort() for _ in range(HEADS)]).to(torch.int16)
    return lambda slots: PackedKeys(dim, entries(slots, kept, 16), channels)


def formats(dim: int) -> dict[str, Format]:
    """Formats to measure, by name."""
    return {
        "8 bits": Format(whole_keys(dim, 8), whole_values(dim, 8)),
        "6 bits": Format(whole_keys(dim, 6), whole_values(dim, 6)),
        "4 bits": Format(whole_keys(dim, 4), whole_values(dim, 4)),
        "3 bits": Format(whole_keys(dim, 3), whole_values(dim, 3)),
        "2 bits": Format(whole_keys(dim, 2), whole_values(dim, 2)),
        "8 bits, rotated": rotated(dim, 8, 8),
        "4 bits, rotated": rotated(dim, 4, 4),
        "2 bits, rotated": rotated(dim, 2, 2),
        "8 bits, rotated, centered and smoothed": rotated(dim, 8, 8, of_heads=True),
        "4 bits, rotated, centered and smoothed": rotated(dim, 4, 4, of_heads=True),
        "keys 8 bits, values 4 bits": Format(whole_keys(dim, 8), whole_values(dim, 4)),
        "keys 8 bits, values 4 bits, rotated": rotated(dim, 8, 4),
        "8 bits, groups of 32": groups(dim, 8, 32),
        "4 bits, groups of 32": groups(dim, 4, 32),
        "4 bits, groups of 64": groups(dim, 4, 64),
        "KIVI, 4 bits": kivi(dim, 4),
        "KIVI, 3 bits": kivi(dim, 3),
        "KIVI, 2 bits": kivi(dim, 2),
        "SPARK 0.5": Format(spark(dim, 0.5), whole_values(dim, 16)),
        "SPARK 0.8": Format(spark(dim, 0.8), whole_values(dim, 16)),
        "SPARK 0.8, values 8 bits": Format(spark(dim, 0.8), whole_values(dim, 8)),
        "SPARK 0.8 at 8 bits, values 8 bits": Format(spark(dim, 0.8, 8), whole_values(dim, 8)),
        "ThinK 0.5": Format(think(dim, 0.5), whole_values(dim, 16)),
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
    empty = torch.empty(1, HEADS, 0, block.key_dim, dtype=DTYPE)
    return DecodePlan([block], TailSegments(empty, empty, torch.zeros(1, dtype=torch.int64)), spec(block.key_dim))


Tables = dict[str, list[Row]]
Step = Callable[[], object]


def random_query(dim: int, group: int, steepness: float) -> Tensor:
    """One token's queries, random numbers times `steepness`."""
    return (steepness * torch.randn(1, HEADS * group, 1, dim)).to(DTYPE)


class Contender(NamedTuple):
    """Attention over a block with any query, and a read-only pass over the block."""

    name: str
    size: int
    run: Callable[[Tensor], Tensor]
    read: Step
    multiply: Callable[[int], None]
    """As many products in registers as a number of queries for each head takes."""


def contender(name: str, form: Format, slots: int) -> Contender:
    """A format over as many slots of every head."""
    block = PackedBlock(form.keys(slots * HEADS), form.values(slots * HEADS), torch.arange(HEADS + 1) * slots, DTYPE)
    tensors = tensors_of(block)

    def read() -> None:
        for tensor in tensors:
            native.read_sum(tensor)

    widths = [(block.key_dim, block.keys.entries.bits), (block.value_dim, block.values.entries.bits)]
    return Contender(name, sum(block.bytes().values()), plan_for(block).run, read, products(slots, widths))


def products(slots: int, widths: list[tuple[int, int]]) -> Callable[[int], None]:
    """The products of attention to slots of every head, whose keys and values have channels of so many bits."""

    def multiply(group: int) -> None:
        for dim, bits in widths:
            native.multiply(slots * HEADS * dim * group, bits, DTYPE)

    return multiply


def compare(
    dim: int, groups: list[int], threads: list[int], rounds: int, slots: int, wanted: list[str], steepness: float
) -> Tables:
    """Every format of heads of one size with every size of a GQA group and every number of threads.

    Tables of a row for each format: fractions of a read-only pass, times as fast as dense attention, and, without
    tiles, fractions of the limit that a read or products alone set.
    """
    layer = make_layer([slots] * HEADS, dim, DTYPE)
    size = layer.prefix.keys.nbytes + layer.prefix.values.nbytes
    dense = Contender("dense", size, layer.plan.run, layer.read, products(slots, 2 * [(dim, 16)]))
    of_read: list[Row] = []
    of_limits: list[Row] = []
    of_dense: list[Row] = []

    def add(one: Contender) -> None:
        facts: Row = {"format": one.name, "bytes per slot": one.size / (slots * HEADS)}
        fractions, limits, speeds = dict(facts), dict(facts), dict(facts)
        for count in threads:
            torch.set_num_threads(count)
            for group in groups:
                query = random_query(dim, group, steepness)
                steps: dict[str, Step] = {
                    "read": one.read,
                    "attend": partial(one.run, query),
                    "dense": partial(dense.run, query),
                }
                if has_limit():
                    steps["multiply"] = partial(one.multiply, group)
                bench = measure(steps, rounds)
                column = f"{threads_in_words(count)}, G {group}"
                fractions[column] = bench.ratio("read", "attend")
                speeds[column] = bench.ratio("dense", "attend")
                if has_limit():
                    limits[column] = of_limit(bench)
            fractions[f"{threads_in_words(count)}, read GB/s"] = one.size / bench.median("read") / 1e9
        of_read.append(fractions)
        of_limits.append(limits)
        of_dense.append(speeds)

    add(dense)
    for name, form in formats(dim).items():
        if not wanted or name in wanted:
            add(contender(name, form, slots))
    tables = {f"Fraction of a read-only pass, D {dim}": of_read, f"Times as fast as dense, D {dim}": of_dense[1:]}
    if has_limit():
        tables[f"Fraction of the limit, D {dim}"] = of_limits
    return tables


def attention_over(name: str, form: Format, slots: int) -> Callable[[Tensor], Tensor]:
    """Attention over as many slots of every head in a format."""
    return contender(name, form, slots).run


def repeatedly(run: Callable[[Tensor], Tensor], query: Tensor) -> None:
    """Several steps."""
    for _ in range(REPEATS):
        run(query)


def with_few_slots(dim: int, groups: list[int], rounds: int, wanted: list[str], steepness: float) -> Tables:
    """Microseconds of a layer's step over few slots, which lie in the processor's caches, with one thread."""
    torch.set_num_threads(1)

    def times(name: str, attention: Callable[[int], Callable[[Tensor], Tensor]]) -> Row:
        row: Row = {"format": name}
        for slots in FEW_SLOTS:
            run = attention(slots)
            for group in groups:
                query = random_query(dim, group, steepness)
                bench = measure({"attend": partial(repeatedly, run, query)}, rounds)
                row[f"{slots} slots, G {group}"] = bench.median("attend") / REPEATS * 1e6
        return row

    rows = [times("dense", lambda slots: make_layer([slots] * HEADS, dim, DTYPE).plan.run)]
    for name, form in formats(dim).items():
        if not wanted or name in wanted:
            rows.append(times(name, partial(attention_over, name, form)))
    return {f"Few slots, D {dim}, microseconds": rows}


def main() -> None:
    """Parse arguments, run, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=128, help="keys and values of as many dense slots")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--dims", type=int, nargs="+", default=[64, 128], help="sizes of heads, two tables each")
    parser.add_argument("--groups", type=int, nargs="+", default=GROUPS, help="query heads of a KV head")
    parser.add_argument(
        "--formats", nargs="+", default=[], choices=list(formats(64)), metavar="NAME", help="only these"
    )
    parser.add_argument("--steepness", type=float, default=1.0, help="multiplies queries; at 40 one slot counts")
    parser.add_argument("--out", type=Path, default=Path("docs/results"), help="folder for the .json and .md")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    options = parser.parse_args()
    torch.manual_seed(0)
    slots = {dim: even_slots(options.megabytes, dim, DTYPE) for dim in options.dims}
    settings: dict[str, object] = {
        "slots per head": ", ".join(f"{count} (D {dim})" for dim, count in slots.items()),
        "rounds": options.rounds,
        "H": HEADS,
        "dtype": name_of(DTYPE),
        "steepness": options.steepness,
    }
    tables: Tables = {}
    for dim, count in slots.items():
        tables |= compare(
            dim, options.groups, options.threads, options.rounds, count, options.formats, options.steepness
        )
        tables |= with_few_slots(dim, options.groups, options.rounds, options.formats, options.steepness)
    title = "Decode attention from packed prefixes"
    text, data = write_tables(options.out, of_this_processor("packed_attention"), title, settings, tables)
    print(data if options.json else text)


if __name__ == "__main__":
    main()
