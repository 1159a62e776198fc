"""Generation in batches: tokens per second and bytes of a dense cache, of SPARK and of ThinK (SPARK, Fig. 4b and 7).

    python benchmarks/batch_generation.py                  # the bundled model; writes docs/results/batch_generation.*
    python benchmarks/batch_generation.py --model DIR --lengths 1024 --batches 1,4,16
    python benchmarks/batch_generation.py --model DIR --methods full snapkv "snapkv+spark(0.8)" --out build

Every row of a batch is a prompt of its own. A batch is prefilled once; each method compresses it, and the caches take
turns at every decoding step. Medians are reported.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import winnow
from reporting import RESULTS, machine, markdown_table, write_results
from winnow.bundled import MODEL_PATH
from winnow.commands.model_names import model_name
from winnow.models import load_model, open_model

BUDGET = 128
"""Slots per head where a method evicts, as in Fig. 4b."""
METHODS = (
    "full",
    "full+think(0.5)",
    "full+spark(0.5)",
    "full+spark(0.8)",
    "snapkv",
    "snapkv+think(0.5)",
    "snapkv+spark(0.5)",
    "snapkv+spark(0.8)",
)
WARM = 2
"""Decoding steps before the clock runs."""


@dataclass(frozen=True)
class Row:
    """One cache of one batch."""

    length: int
    """Tokens of every prompt."""
    batch: int
    """Rows."""
    method: str
    prefill_seconds: float
    compress_seconds: float
    step_ms: float
    """Median time of a decoding step of all rows."""
    held_mb: float
    """Bytes of the cache, all rows."""

    @property
    def decoded(self) -> float:
        """Tokens per second while decoding."""
        return 1000 * self.batch / self.step_ms

    def generated(self, tokens: int) -> float:
        """Tokens per second of `tokens` new ones in every row, prefill and compression included."""
        seconds = self.prefill_seconds + self.compress_seconds + tokens * self.step_ms / 1000
        return self.batch * tokens / seconds

    @property
    def rows_in_a_gib(self) -> float:
        """Rows whose caches fit into 2^30 bytes."""
        return 2**30 * self.batch / (1e6 * self.held_mb)


def prefilled(model: Any, ids: Tensor) -> tuple[winnow.CompressedCache, float]:
    """A batch whose compression waits, and the seconds of its prefill."""
    cache = winnow.CompressedCache(model, winnow.method("full"), defer=True)
    begin = time.perf_counter()
    model(ids, cache=cache, logits_to_keep=1)
    return cache, time.perf_counter() - begin


def decoded(model: Any, caches: dict[str, winnow.CompressedCache], batch: int, steps: int) -> dict[str, float]:
    """Median milliseconds of a step; the caches take turns."""
    token = torch.ones(batch, 1, dtype=torch.int64)
    times: dict[str, list[float]] = {name: [] for name in caches}
    for step in range(WARM + steps):
        for name, cache in caches.items():
            begin = time.perf_counter()
            model(token, cache=cache)
            if step >= WARM:
                times[name].append(1000 * (time.perf_counter() - begin))
    return {name: statistics.median(found) for name, found in times.items()}


@torch.no_grad()
def measure(model: Any, length: int, batch: int, methods: Sequence[str], steps: int) -> list[Row]:
    """Every method on one batch."""
    generator = torch.Generator().manual_seed(batch)
    ids = torch.randint(8, min(model.config.vocab_size, 800), (batch, length), generator=generator)
    waiting, seconds = prefilled(model, ids)
    caches = {name: waiting.compressed_by(_method(name)) for name in methods}
    stats = {name: cache.stats() for name, cache in caches.items()}
    del waiting
    gc.collect()
    times = decoded(model, caches, batch, steps)
    return [
        Row(length, batch, name, seconds, stats[name].compress_seconds, times[name], stats[name].held_bytes / 1e6)
        for name in methods
    ]


def _method(name: str) -> winnow.Method:
    return winnow.method(name, None if name.partition("+")[0] == "full" else BUDGET)


def table(rows: Sequence[Row], new: int) -> str:
    """One table for every length."""
    head = ["rows", "method", "MB held", "rows in a GiB", "decode tokens/s", f"tokens/s with prefill, {new} new"]
    parts = []
    for length in dict.fromkeys(row.length for row in rows):
        body = [
            [
                str(row.batch),
                f"`{row.method}`",
                f"{row.held_mb:.1f}",
                f"{row.rows_in_a_gib:.0f}",
                f"{row.decoded:.1f}",
                f"{row.generated(new):.1f}",
            ]
            for row in rows
            if row.length == length
        ]
        parts.append(f"## Prompts of {length} tokens\n\n{markdown_table(head, body)}")
    return "\n\n".join(parts)


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path, help="a directory; the bundled model without it")
    parser.add_argument("--lengths", default="1024,4096")
    parser.add_argument("--batches", default="1,4,16")
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--new", type=int, default=256, help="tokens of an answer, for the speed with prefill")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    args = parser.parse_args()
    source = open_model(args.model or MODEL_PATH)
    model = load_model(source, "cpu", "bfloat16")
    model.set_attn_implementation("winnow")
    rows: list[Row] = []
    for length in map(int, args.lengths.split(",")):
        for batch in map(int, args.batches.split(",")):
            rows += measure(model, length, batch, args.methods, args.steps)
            print(f"{length} tokens, {batch} rows: prefill {rows[-1].prefill_seconds:.1f} s", flush=True)
    text = (
        f"# Generation in batches\n\n{model_name(source)} in bfloat16, random prompts, budget of evicting methods "
        f"{BUDGET}. {machine()}\n\nRegenerate with `python benchmarks/batch_generation.py"
        f"{' --model MODEL' if args.model else ''} --lengths {args.lengths} --batches {args.batches}`.\n\n"
        f"{table(rows, args.new)}\n"
    )
    print(text)
    write_results(args.out, "batch_generation", text, [asdict(row) for row in rows])


if __name__ == "__main__":
    main()
