"""Tables of `gpu.py`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from gpu_models import STATIC, STOCK
from reporting import markdown_table, write_results

Record = dict[str, Any]


def write(folder: Path, records: list[Record]) -> str:
    """The page of a GPU, and its figures beside it; returns the former."""
    ceiling = next((record for record in records if record["kind"] == "ceiling"), None)
    copied = "" if ceiling is None else f"{ceiling['machine']} Copying within its memory: {ceiling['gb_s']:.0f} GB/s."
    parts = [
        "# On a GPU" + (f": {_gpu(ceiling['machine'])}" if ceiling else ""),
        copied,
        _kernels([record for record in records if record["kind"] == "kernel"]),
        _models([record for record in records if record["kind"] == "model"]),
        "Repeat it: `python benchmarks/gpu.py`.",
    ]
    text = "\n\n".join(part for part in parts if part) + "\n"
    name = "gpu" if ceiling is None else page_name(_gpu(ceiling["machine"]))
    write_results(folder, name, text, records, None if ceiling is None else ceiling["machine"])
    return text


def rewrite(folder: Path) -> str:
    """All pages of GPUs anew, of the figures beside them; returns these."""
    return "\n".join(
        write(folder, json.loads(path.read_text(encoding="utf-8"))["results"])
        for path in sorted(folder.glob("gpu-*.json"))
    )


def page_name(gpu: str) -> str:
    """A page's name, by the GPU's model ("gpu-h100"), so that a run on one leaves the others' figures alone."""
    model = re.search(r"[A-Za-z]*\d\w*", gpu)
    return f"gpu-{model[0].lower()}" if model else "gpu"


def _gpu(machine: str) -> str:
    """A GPU's name, which a machine in words begins with."""
    return re.split("[.,]", machine, maxsplit=1)[0]


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
        "One layer's decode step: 8 KV heads of 128 channels in bf16, 4 query heads each. Ours and others took turns, "
        "with the second-level cache overwritten in between; where a CUDA graph could be captured, its replay was "
        "timed. *Skewed*: one head is four times as long as the mean. *Of copying*: bytes read over those that a copy "
        "reads and writes in the same time. *Host µs*: what launching takes without a graph. Beyond 1x ours is faster."
    )
    return f"## Kernels\n\n{about}\n\n{markdown_table(head, body)}" + _failures(records)


def _failures(records: list[Record]) -> str:
    """A list of what did not run, and why: the same reason once."""
    where: dict[tuple[str, str], list[str]] = {}
    for record in records:
        for name, why in record.get("failed", {}).items():
            where.setdefault((name, why), []).append(record["name"])
    notes = [
        f"{name}: {why} ({names[0]}{f' and {len(names) - 1} more' if len(names) > 1 else ''})"
        for (name, why), names in where.items()
    ]
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
    head = ["cache", "tokens", "rows", "prefill ms", "over transformers'", "step ms", "generate ms", "graphed ms",
            "static's / ours",
            "tokens/s", "held MB", "prefill peak MB", "rows that fit"]  # fmt: skip
    usual = [each for each in records if "skipped" not in each and not each.get("compiled")]
    measured = {(each["cache"], each["tokens"], each["rows"]): each for each in usual}
    body = [
        _model(record, *(measured.get((each, record["tokens"], record["rows"])) for each in (STOCK, STATIC)))
        for record in records
    ]
    about = (
        "A Llama with random weights in bf16. *stock* and *static*: transformers' DynamicCache and StaticCache with "
        "sdpa. *Over transformers'*: what the prefill takes longer than with stock, or with static where stock was not "
        "measured, compression included. "
        "*Step ms*: a step as Python launches it, which is the host's time more than the GPU's. "
        "*Generate ms*: a token of an answer of 48 by `model.generate`, ours within `winnow.step_graphs`, which "
        "captures graphs meanwhile; not measured for static. "
        "*Graphed ms*: a step that is replayed from a CUDA graph, ours by `winnow.GraphedDecoder`; the stock cache "
        "allows none. *Static's / ours*: of these steps; a static cache always has a mask, with which transformers "
        "repeats keys and values for every query head before it attends, 4 times as many bytes here. "
        "*Tokens/s*: of all rows together, by the graph where there is "
        "one. *Rows that fit*: by the bytes that a row holds, in 90% of the memory that the weights leave. *Compiled "
        "layers*: by `torch.compile`, layer by layer."
    )
    return f"## A model of 8B's shape\n\n{about}\n\n{markdown_table(head, body)}" + _failures(records)


def _model(record: Record, stock: Record | None, static: Record | None) -> list[str]:
    cache = record["cache"] + (", compiled layers" if record.get("compiled") else "")
    cache += ", earlier run" if record.get("earlier") else ""
    facts = [cache, f"{record['tokens']:,}", str(record["rows"])]
    if "skipped" in record:
        return [*facts, record["skipped"], *[""] * 9]
    baseline, graphed = stock or static, record["graphed_ms"]
    theirs, generated = static["graphed_ms"] if static else None, record.get("generate_ms")
    return [
        *facts,
        f"{record['prefill_ms']:.0f}",
        f"{record['prefill_ms'] / baseline['prefill_ms'] - 1:+.0%}" if baseline and baseline is not record else "",
        f"{record['decode_ms']:.1f}",
        f"{generated:.1f}" if generated else "",
        f"{graphed:.2f}" if graphed else "",
        f"{theirs / graphed:.1f}x" if theirs and graphed and static is not record else "",
        f"{record['rows'] * 1e3 / (graphed or record['decode_ms']):.0f}",
        f"{record['held_bytes'] / 1e6:.1f}",
        f"{record['prefill_peak_bytes'] / 1e6:.0f}",
        f"{record['rows_that_fit']:,}",
    ]
