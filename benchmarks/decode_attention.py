"""Speed of decode attention over a dense cache, and of its alternatives.

One run, one machine, one step of decoding at a time. Contenders are measured in turn within every round, so that
whatever disturbs the machine disturbs all of them; a ratio is the median of the ratios of the rounds.

    python benchmarks/decode_attention.py [--megabytes 64] [--rounds 15] [--json]

Results have a page for each vendor of processors, so that a run on one leaves the other's figures alone.
"""

from __future__ import annotations

import argparse
import itertools
import json
import platform
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import torch
import transformers
from torch import Tensor
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward

from reporting import limits, name_of, of_this_processor, pages
from rounds import Bench, measure
from winnow.files import write_text
from winnow.kernels import AttentionSpec, DecodePlan, DenseBlock, TailSegments, backend, native
from winnow.runs.environment import processor_name

HEADS, GROUP = 8, 4
GROUPS = [1, 4, 7, 8]
"""Query heads of a KV head: of models without GQA, Llama and Mistral, Qwen2, and the largest of these."""
IN_MEMORY_MEGABYTES, IN_MEMORY_LAYERS = 16, 96
"""Size of a layer's keys and values, and how many layers take turns: together more than a processor's caches hold."""
SHORT = [(64, 7), (128, 6)]
"""D and G of Qwen2.5-0.5B and 1.5B, which have two KV heads: of what such a model holds, chunks are few."""
SHORT_HEADS, SHORT_LAYERS = 2, 24
SHORT_SLOTS = [512, 1024, 2048, 4096, 8192]
"""Slots of a head."""
UNEVEN = [8.0, 2.0, 1.0, 0.5, 0.5, 0.5, 0.5, 0.5]
"""Shares of eight heads whose longest is 4.7 times the mean, as head-wise methods leave them."""


class Layer(NamedTuple):
    """One layer's cache and one step's query."""

    query: Tensor
    prefix: DenseBlock
    plan: DecodePlan

    def run(self) -> Tensor:
        """One decode step."""
        return self.plan.run(self.query)

    def read(self) -> None:
        """Read the same bytes and do nothing else."""
        native.read_sum(self.prefix.keys)
        native.read_sum(self.prefix.values)

    def multiply(self) -> None:
        """Multiply and add up as many numbers in registers and do nothing else."""
        numbers = self.prefix.keys.numel() + self.prefix.values.numel()
        heads = len(self.prefix.offsets) - 1
        native.multiply(numbers * (self.query.shape[1] // heads), 16, self.prefix.keys.dtype)


def make_layer(slots: list[int], dim: int, dtype: torch.dtype, group: int = GROUP) -> Layer:
    """A layer whose heads hold `slots` tokens."""
    keys, values = (torch.randn(sum(slots), dim).to(dtype) for _ in range(2))
    query = torch.randn(1, len(slots) * group, 1, dim).to(dtype)
    return layer_of(query, DenseBlock(keys, values, torch.tensor([0, *slots]).cumsum(0)))


def copy_of(layer: Layer) -> Layer:
    """A layer that holds the same numbers elsewhere."""
    prefix = layer.prefix
    return layer_of(layer.query, DenseBlock(prefix.keys.clone(), prefix.values.clone(), prefix.offsets))


def layer_of(query: Tensor, prefix: DenseBlock) -> Layer:
    """A layer whose tail is empty."""
    dim = query.shape[-1]
    empty = torch.empty(1, len(prefix.offsets) - 1, 0, dim, dtype=query.dtype)
    plan = DecodePlan([prefix], TailSegments(empty, empty, torch.zeros(1, dtype=torch.int64)), spec(dim))
    return Layer(query, prefix, plan)


def spec(dim: int) -> AttentionSpec:
    """Plain scaled attention."""
    return AttentionSpec(dim**-0.5)


def even_slots(megabytes: int, dim: int, dtype: torch.dtype) -> int:
    """Tokens per head so that keys and values fill `megabytes`."""
    return megabytes * 2**20 // (2 * HEADS * dim * dtype.itemsize)


def fraction_of_read(layers: Sequence[Layer], rounds: int) -> dict[str, object]:
    """Speed next to a read-only pass over the same bytes with the same threads, of layers of one shape in turn."""

    def read() -> None:
        for layer in layers:
            layer.read()

    def attend() -> None:
        for layer in layers:
            layer.run()

    def multiply() -> None:
        for layer in layers:
            layer.multiply()

    contenders = {"read": read, "attend": attend}
    if has_limit():
        contenders["multiply"] = multiply
    bench = measure(contenders, rounds)
    query, keys = layers[0].query, layers[0].prefix.keys
    size = 2 * keys.nbytes * len(layers)
    return {
        "D": keys.shape[1],
        "G": query.shape[1] // (len(layers[0].prefix.offsets) - 1),
        "dtype": name_of(keys.dtype),
        "read GB/s": size / bench.median("read") / 1e9,
        "attend GB/s": size / bench.median("attend") / 1e9,
        "fraction of read": bench.ratio("read", "attend"),
        **({"fraction of the limit": of_limit(bench)} if has_limit() else {}),
    }


def of_limit(bench: Bench) -> float:
    """The share of the time of attention that a read or products alone would take, whichever is more."""
    return max(bench.ratio("read", "attend"), bench.ratio("multiply", "attend"))


def has_limit() -> bool:
    """False where products are made in tiles: those in registers are no limit then."""
    return native.isa() != "amx"


def in_memory(dim: int, group: int, dtype: torch.dtype) -> list[Layer]:
    """Layers as a model finds them: since the last step of one, the processor's caches have seen all others."""
    first = make_layer([even_slots(IN_MEMORY_MEGABYTES, dim, dtype)] * HEADS, dim, dtype, group)
    return [first, *(copy_of(first) for _ in range(IN_MEMORY_LAYERS - 1))]


def of_short_context(dim: int, group: int, dtype: torch.dtype, slots: int, rounds: int) -> dict[str, object]:
    """The layers of a small model in turn, of few slots each."""
    first = make_layer([slots] * SHORT_HEADS, dim, dtype, group)
    row = fraction_of_read([first, *(copy_of(first) for _ in range(SHORT_LAYERS - 1))], rounds)
    return {"slots": slots, **row}


def cost_of_skew(megabytes: int, rounds: int, dim: int, dtype: torch.dtype) -> dict[str, object]:
    """Heads of very different length against heads of the same length, with the same total."""
    even = even_slots(megabytes, dim, dtype)
    total = even * HEADS
    skewed = skewed_slots(total)
    layers = {"even": make_layer([even] * HEADS, dim, dtype), "skewed": make_layer(skewed, dim, dtype)}
    bench = measure({name: layer.run for name, layer in layers.items()}, rounds)
    return {
        "D": dim,
        "dtype": name_of(dtype),
        "longest / mean": max(skewed) * HEADS / total,
        "even ms": bench.median("even") * 1e3,
        "skewed ms": bench.median("skewed") * 1e3,
        "skewed / even": bench.ratio("skewed", "even"),
    }


def skewed_slots(total: int) -> list[int]:
    """`total` slots, nearly all of them in one head of eight."""
    short = max(total // 1000, 1)
    return [total - short * (HEADS - 1)] + [short] * (HEADS - 1)


def alternatives(megabytes: int, rounds: int, dim: int, dtype: torch.dtype) -> dict[str, object]:
    """Times of the same step in plain torch, relative to the kernel's."""
    even = even_slots(megabytes, dim, dtype)
    layer = make_layer([even] * HEADS, dim, dtype)
    keys, values = (x.view(1, HEADS, even, dim) for x in (layer.prefix.keys, layer.prefix.values))
    query, scale = layer.query, dim**-0.5
    module = SimpleNamespace(num_key_value_groups=GROUP, is_causal=True)

    def default() -> Tensor:
        out: Tensor = sdpa_attention_forward(module, query, keys, values, None, scaling=scale)[0]
        return out

    def repeated() -> Tensor:
        return sdpa(query, repeat_kv(keys, GROUP), repeat_kv(values, GROUP), scale)

    def folded() -> Tensor:
        return sdpa(query.view(1, HEADS, GROUP, dim), keys, values, scale)

    expected = layer.run().float()
    for other in (default(), repeated().transpose(1, 2), folded().reshape(1, HEADS * GROUP, 1, dim).transpose(1, 2)):
        torch.testing.assert_close(other.float(), expected, rtol=0.02, atol=1e-3)
    runs = {"attend": layer.run, "default": default, "repeat_kv": repeated, "folded": folded}
    bench = measure(runs, rounds)
    return {
        "D": dim,
        "dtype": name_of(dtype),
        "attend ms": bench.median("attend") * 1e3,
        "transformers default": bench.ratio("default", "attend"),
        "repeat_kv + sdpa": bench.ratio("repeat_kv", "attend"),
        "folded sdpa": bench.ratio("folded", "attend"),
    }


def padded_alternative(megabytes: int, rounds: int, dim: int, dtype: torch.dtype) -> dict[str, object]:
    """Heads of uneven length: padding all to the longest and masking, the query group folded."""
    total = even_slots(megabytes, dim, dtype) * HEADS
    weights = torch.tensor(UNEVEN)
    slots = [int(n) for n in weights / weights.sum() * total]
    layer = make_layer(slots, dim, dtype)
    shape = (1, HEADS, max(slots), dim)
    keys, values = torch.zeros(shape, dtype=dtype), torch.zeros(shape, dtype=dtype)
    mask = torch.zeros(1, HEADS, 1, max(slots), dtype=torch.bool)
    start = 0
    for head, count in enumerate(slots):
        keys[0, head, :count] = layer.prefix.keys[start : start + count]
        values[0, head, :count] = layer.prefix.values[start : start + count]
        mask[0, head, :, :count] = True
        start += count
    query = layer.query.view(1, HEADS, GROUP, dim)
    bench = measure({"attend": layer.run, "padded": lambda: sdpa(query, keys, values, dim**-0.5, mask)}, rounds)
    return {
        "D": dim,
        "dtype": name_of(dtype),
        "longest / mean": max(slots) * HEADS / sum(slots),
        "attend ms": bench.median("attend") * 1e3,
        "padded sdpa": bench.ratio("padded", "attend"),
    }


def sdpa(query: Tensor, keys: Tensor, values: Tensor, scale: float, mask: Tensor | None = None) -> Tensor:
    """torch's fused attention."""
    return torch.nn.functional.scaled_dot_product_attention(query, keys, values, attn_mask=mask, scale=scale)


def dispatch_overhead(rounds: int, heads: int) -> dict[str, object]:
    """Microseconds per layer and step when there is one token per head: Python, ctypes, setting up and merging."""
    calls = 50  # short enough to fit between interruptions
    layer = make_layer([1] * heads, 64, torch.float32)

    def many() -> None:
        for _ in range(calls):
            layer.plan.run(layer.query)

    bench = measure({"attend": many}, 20 * rounds)
    return {"KV heads": heads, "µs per layer and step": bench.median("attend") / calls * 1e6}


def machine_facts() -> dict[str, object]:
    """The processor, software and settings that the numbers depend on."""
    return {
        "cpu": processor_name(),
        "cores": torch.multiprocessing.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "backend": f"{backend()}{pages()}{limits()}",
    }


Row = dict[str, object]


def run_all(megabytes: int, rounds: int, threads: list[int]) -> dict[str, list[Row]]:
    """Every table, with the number of threads in the first column."""
    dtypes = [torch.float32, torch.bfloat16, torch.float16]
    tables: dict[str, list[Row]] = {}

    def add(table: str, count: int, row: Row) -> None:
        tables.setdefault(table, []).append({"threads": count, **row})

    for count in threads:
        torch.set_num_threads(count)
        for dim, group, dtype in itertools.product((64, 128, 256), GROUPS, dtypes):
            if dim != 256 or group in (4, 8):
                layer = make_layer([even_slots(megabytes, dim, dtype)] * HEADS, dim, dtype, group)
                add("Fraction of a read-only pass", count, fraction_of_read([layer], rounds))
        for dim, group, dtype in itertools.product((64, 128), GROUPS, dtypes[:2]):
            row = fraction_of_read(in_memory(dim, group, dtype), max(rounds // 3, 3))
            add("Fraction of a read-only pass from memory", count, row)
        for (dim, group), slots in itertools.product(SHORT, SHORT_SLOTS):
            add("Two heads, short contexts", count, of_short_context(dim, group, torch.bfloat16, slots, 5 * rounds))
        for dtype in dtypes[:2]:
            add("Cost of skew", count, cost_of_skew(megabytes, rounds, 128, dtype))
        slow_rounds = max(rounds // 3, 3)
        for dim in (128, 64):
            for dtype in dtypes[:2]:
                add("Time relative to the kernel", count, alternatives(megabytes, slow_rounds, dim, dtype))
        for dtype in dtypes[:2]:
            add(
                "Uneven heads, time relative to the kernel",
                count,
                padded_alternative(megabytes, slow_rounds, 128, dtype),
            )
        for heads in (1, HEADS):
            add("Dispatch: one token per head", count, dispatch_overhead(rounds, heads))
    return tables


def as_markdown(tables: dict[str, list[Row]]) -> str:
    """The tables as text."""
    parts = []
    for title, rows in tables.items():
        columns = list(rows[0])
        lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
        lines += ["| " + " | ".join(cell(row[column]) for column in columns) + " |" for row in rows]
        parts.append(f"## {title}\n\n" + "\n".join(lines) + "\n")
    return "\n".join(parts)


def cell(value: object) -> str:
    """Three significant digits for floats."""
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def write_tables(
    folder: Path, name: str, title: str, settings: dict[str, object], tables: dict[str, list[Row]]
) -> tuple[str, str]:
    """`name`.md and `name`.json with the machine, the settings and the tables; returns both texts."""
    facts = "".join(f"- {key}: {value}\n" for key, value in {**machine_facts(), **settings}.items())
    text = f"# {title}\n\n{facts}\n{as_markdown(tables)}"
    data = json.dumps({"machine": machine_facts(), "settings": settings, "tables": tables}, indent=1)
    write_text(folder / f"{name}.md", text)
    write_text(folder / f"{name}.json", data + "\n")
    return text, data


def main() -> None:
    """Parse arguments, run, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=64, help="keys and values of the layer")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--out", type=Path, default=Path("docs/results"), help="folder for the .json and .md")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    options = parser.parse_args()
    torch.manual_seed(0)
    settings: dict[str, object] = {
        "megabytes": options.megabytes,
        "rounds": options.rounds,
        "from memory": f"{IN_MEMORY_LAYERS} layers of {IN_MEMORY_MEGABYTES} megabytes",
        "H": HEADS,
        "default G": GROUP,
    }
    tables = run_all(options.megabytes, options.rounds, options.threads)
    text, data = write_tables(options.out, of_this_processor("decode_attention"), "Decode attention", settings, tables)
    print(data if options.json else text)


if __name__ == "__main__":
    main()
