"""Tables of `gpu.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from gpu_models import STOCK
from reporting import machine, markdown_table, write_results

Record = dict[str, Any]


def write(folder: Path, device: torch.device, name: str, records: list[Record]) -> str:
    """gpu.md and gpu.json; returns the former."""
    ceiling = next((record["gb_s"] for record in records if record["kind"] == "ceiling"), None)
    copied = "not measured" if ceiling is None else f"{ceiling:.0f} GB/s read and written"
    parts = [
        f"# On a GPU\n\n{name}, {machine(device)} Copying within its memory: {copied}.",
        _kernels([record for record in records if record["kind"] == "kernel"]),
        _models([record for record in records if record["kind"] == "model"]),
        "Repeat it: `python benchmarks/gpu.py`.",
    ]
    text = "\n\n".join(part for part in parts if part) + "\n"
    write_results(folder, "gpu", text, records)
    return text


def _kernels(records: list[Record]) -> str:
    if not records:
        return ""
    peers = sorted({name for record in records for name in record.get("peers", ())})
    head = [
        "store",
        "slots",
        "rows",
        "heads",
        "ms",
        "GB/s",
        "of copying",
        "host µs",
        *(f"{name} / ours" for name in peers),
    ]
    body = [_kernel(record, peers) for record in records]
    about = (
        "One layer's decode step. Ours and others took turns, with the second-level cache overwritten in between; "
        "where a CUDA graph could be captured, its replay was timed. *Host µs*: what launching takes without a graph."
    )
    return f"## Kernels\n\n{about}\n\n{markdown_table(head, body)}" + _failures(records)


def _failures(records: list[Record]) -> str:
    """A list of what did not run, and why."""
    notes = [f"{record['name']}: {name}: {why}" for record in records for name, why in record.get("failed", {}).items()]
    return "\n" + "".join(f"\n- {note}" for note in notes) if notes else ""


def _kernel(record: Record, peers: list[str]) -> list[str]:
    facts = [record["store"], f"{record['tokens']:,}", str(record["rows"]), "skewed" if record["skewed"] else "even"]
    if "skipped" in record:
        return [*facts, record["skipped"], *[""] * (3 + len(peers))]
    speed = [f"{record['ms']:.3f}", f"{record['gb_s']:.0f}", f"{record['share']:.0%}", f"{record['host_us']:.0f}"]
    return [*facts, *speed, *(f"{record['peers'][name]:.2f}x" if name in record["peers"] else "" for name in peers)]


def _models(records: list[Record]) -> str:
    if not records:
        return ""
    head = ["cache", "tokens", "rows", "prefill ms", "over full", "decode ms", "graphed ms", "tokens/s", "of stock's",
            "held MB", "prefill peak MB", "rows that fit"]  # fmt: skip
    measured = {(r["cache"], r["tokens"], r["rows"]): r for r in records if "skipped" not in r}
    body = [
        _model(record, *(measured.get((each, record["tokens"], record["rows"])) for each in (STOCK, "full")))
        for record in records
    ]
    about = (
        "A Llama with random weights. *Over full*: what the prefill takes longer than one that keeps everything in "
        "this cache. *Of stock's*: tokens a second over those of transformers' own cache with sdpa. "
        "*Graphed ms*: a step by `winnow.GraphedDecoder`, replayed from a CUDA graph; empty for the stock cache, and "
        "where there is no GPU. "
        "*Rows that fit*: by the bytes that a row holds, in 90% of the memory that the weights leave."
    )
    return f"## A model of 8B's shape\n\n{about}\n\n{markdown_table(head, body)}" + _failures(records)


def _model(record: Record, stock: Record | None, full: Record | None) -> list[str]:
    facts = [record["cache"], f"{record['tokens']:,}", str(record["rows"])]
    if "skipped" in record:
        return [*facts, record["skipped"], *[""] * 8]
    ratio = f"{record['tokens_s'] / stock['tokens_s']:.2f}x" if stock else ""
    return [
        *facts,
        f"{record['prefill_ms']:.0f}",
        f"{record['prefill_ms'] / full['prefill_ms'] - 1:+.1%}" if full else "",
        f"{record['decode_ms']:.2f}",
        "" if record["graphed_ms"] is None else f"{record['graphed_ms']:.2f}",
        f"{record['tokens_s']:.0f}",
        ratio,
        f"{record['held_bytes'] / 1e6:.1f}",
        f"{record['prefill_peak_bytes'] / 1e6:.0f}",
        f"{record['rows_that_fit']:,}",
    ]
