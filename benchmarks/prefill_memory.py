"""Peak memory of a prefill: all layers' dense keys and values with the stock cache, one layer's with a compressed one.

    python benchmarks/prefill_memory.py [--tokens 8192] [--layers 16]

Each cache runs in a process of its own, which reports how far its peak resident memory rose during the prefill. Runs
without any cache, under the attention that the cache is read by, give what the model itself needs for its activations;
the rest is what the cache costs at its worst.
"""

from __future__ import annotations

import argparse
import json
import resource
from pathlib import Path
from typing import Any

import torch
from transformers import DynamicCache, PreTrainedModel

import winnow
from random_models import random_llama
from reporting import RESULTS, machine, markdown_table, measured_apart, of_this_processor, write_results

ALONE, ALONE_WINNOW = "no cache, sdpa", "no cache, winnow's attention"
CACHES = (ALONE, ALONE_WINNOW, "stock cache", "winnow full", "winnow adakv 2%", "winnow h2o 2%")
KV_HEADS, HEAD_DIM = 4, 64


def build(layers: int) -> PreTrainedModel:
    """Many layers of little width, so that the cache outweighs the activations."""
    return random_llama(
        layers=layers,
        query_heads=KV_HEADS,
        kv_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        hidden=256,
        vocabulary=256,
    )


def make_cache(kind: str, model: PreTrainedModel) -> Any:
    """The cache of one row of the table."""
    if kind == ALONE:
        return None
    if kind == "stock cache":
        return DynamicCache()
    model.set_attn_implementation("winnow")
    if kind == ALONE_WINNOW:
        return None
    name, *budget = kind.removeprefix("winnow ").split()
    return winnow.CompressedCache(model, winnow.method(name, budget=budget[0] if budget else None))


def baseline(kind: str) -> str:
    """The row without a cache that a row is compared with: that of its attention."""
    return ALONE_WINNOW if "winnow" in kind else ALONE


def peak() -> int:
    """Peak resident bytes of this process so far."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def child(kind: str, tokens: int, layers: int) -> None:
    """Prefills once and prints the rise of the peak and the bytes held at the end."""
    torch.set_num_threads(1)
    model = build(layers)
    cache = make_cache(kind, model)
    with torch.no_grad():
        model(torch.zeros(1, 64, dtype=torch.int64), use_cache=False)
        before = peak()
        ids = torch.zeros(1, tokens, dtype=torch.int64)
        model(ids, cache=cache, use_cache=cache is not None, logits_to_keep=1)
        rise = peak() - before
    held = 0
    if isinstance(cache, winnow.CompressedCache):
        held = cache.stats().held_bytes
    elif cache is not None:
        held = sum(keys.nbytes + values.nbytes for keys, values, *_ in cache)
    print(json.dumps({"cache": kind, "peak_bytes": rise, "held_bytes": held}))


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(args.child, args.tokens, args.layers)
        return
    rows = []
    for kind in CACHES:
        size = ["--tokens", str(args.tokens), "--layers", str(args.layers)]
        rows.append(measured_apart(["--child", kind, *size]))
    layer = 2 * KV_HEADS * HEAD_DIM * 4 * args.tokens
    alone = {row["cache"]: row["peak_bytes"] for row in rows}
    body = [
        [
            row["cache"],
            f"{row['peak_bytes'] / 1e6:.0f}",
            f"{(row['peak_bytes'] - alone[baseline(row['cache'])]) / layer:z.1f}",
            f"{row['held_bytes'] / 1e6:.0f}",
        ]
        for row in rows
    ]
    head = [
        "cache",
        "peak over start, MB",
        "above no cache with that attention, in layers of dense K and V",
        "held afterwards, MB",
    ]
    about = f"{args.layers} layers, {args.tokens} tokens; a layer's dense keys and values are {layer / 1e6:.0f} MB."
    title = "# Peak memory of a prefill\n\n`python benchmarks/prefill_memory.py`: "
    text = f"{title}{about} {machine()}\n\n{markdown_table(head, body)}\n"
    write_results(args.out, of_this_processor("prefill_memory"), text, rows)
    print(text)


if __name__ == "__main__":
    main()
