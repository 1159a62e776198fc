"""Cost of packing at prefill and its gain afterwards: stores on everything and on a fifth of a prompt, in one run.

    python benchmarks/packing.py                      # writes docs/results/packing.*
    python benchmarks/packing.py --shapes small       # only this; other rows of the results stay

The prompt is prefilled once per shape, then compressed by every method; decoding steps of all caches are interleaved.
"""

from __future__ import annotations

import argparse
import gc
from dataclasses import asdict
from pathlib import Path

import torch

from end_to_end import (
    SHAPES,
    VOCABULARY,
    Contender,
    Row,
    Shape,
    compressed,
    decode,
    earlier,
    prefill,
    stock,
)
from reporting import RESULTS, machine, markdown_table, write_results
from winnow import CompressedCache

SHARE = 0.2
STORES = (
    "",
    "bits(8)",
    "bits(6)",
    "bits(4)",
    "bits(4, round=queries)",
    "bits(4, group=64, round=queries, dense_first=1)",
    "bits(4, group=32)",
    "bits(3)",
    "bits(2)",
    "bits(4, center=false, smooth=false)",
    "bits(4, rotate=false, center=false, smooth=false)",
    "bits(k=8, v=4)",
    "kivi(4)",
    "spark(0.5)",
    "spark(0.8)",
    "spark(0.8)+bits(8)",
    "spark-p(0.9)",
    "think(0.5)",
    "think(0.5)+kivi(4)",
)


def named(eviction: str) -> list[str]:
    """An eviction with every store."""
    return [f"{eviction}+{store}" if store else eviction for store in STORES]


def contenders(waiting: CompressedCache, budget: int) -> list[Contender]:
    """The stock cache, and every store on everything and on what an eviction keeps."""
    plain = stock(waiting)
    made = [Contender("stock cache, sdpa", "sdpa", plain, lambda: sum(k.nbytes + v.nbytes for k, v, *_ in plain))]
    for name, slots in [(name, None) for name in named("full")] + [(name, budget) for name in named("adakv")]:
        made.append(compressed(waiting, name, slots))
        print(f"    {name}: compressed in {made[-1].compress_seconds:.3f} s", flush=True)
    return made


def measure(shape: Shape, tokens: int, steps: int) -> list[Row]:
    """All rows of one shape."""
    model = shape.build()
    ids = torch.randint(0, VOCABULARY, (1, tokens), generator=torch.Generator().manual_seed(1))
    prefill(model, ids[:, :512])
    waiting, seconds = prefill(model, ids)
    print(f"  prefill {seconds:.1f} s", flush=True)
    made = contenders(waiting, int(tokens * SHARE))
    held = {each.name: each.held() for each in made}
    del waiting
    gc.collect()
    speed = decode(model, made, steps)
    return [
        Row(shape.name, tokens, m.name, seconds, m.compress_seconds, speed[m.name], held[m.name] / 1e6, None, SHARE)
        for m in made
    ]


def table(rows: list[Row]) -> str:
    """A table per shape and length."""
    parts = []
    for shape, tokens in dict.fromkeys((row.shape, row.tokens) for row in rows):
        group = [row for row in rows if (row.shape, row.tokens) == (shape, tokens)]
        by_name = {row.cache: row for row in group}
        body = [
            [
                f"`{row.cache}`",
                f"{1000 * (row.compress_seconds or 0):.0f}",
                row.overhead,
                f"{row.held_mb:.1f}",
                f"{row.decode_ms:.2f}",
                f"{by_name['stock cache, sdpa'].decode_ms / row.decode_ms:.1f}x",
                f"{by_name['full'].decode_ms / row.decode_ms:.2f}x",
            ]
            for row in group
        ]
        head = ["cache", "compress ms", "of prefill", "held MB", "decode ms", "vs stock", "vs full, our kernel"]
        title = f"### {shape}, {tokens} tokens (prefill {group[0].prefill_seconds:.1f} s)"
        parts.append(f"{title}\n\n{markdown_table(head, body)}")
    return "\n\n".join(parts)


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shapes", default="small,large", help=f"of {', '.join(SHAPES)}")
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    options = parser.parse_args()
    rows = earlier(options.out / "packing.json", SHARE)
    for shape in map(SHAPES.__getitem__, options.shapes.split(",")):
        print(f"{shape.name}:", flush=True)
        rows = [row for row in rows if (row.shape, row.tokens) != (shape.name, options.tokens)]
        rows += measure(shape, options.tokens, options.steps)
    text = (
        f"# Stores end to end\n\nRandom-weight Llamas in fp32; `full` keeps everything, `adakv` {100 * SHARE:.0f} % of "
        f"the prompt; compression is scoring, selecting and packing. {machine()}\n\n"
        f"Regenerate with `python benchmarks/packing.py`.\n\n{table(rows)}\n"
    )
    print(text)
    write_results(options.out, "packing", text, [asdict(row) for row in rows])


if __name__ == "__main__":
    main()
