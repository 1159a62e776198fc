"""Speed and memory on a GPU: every kernel beside the copy ceiling and other libraries, and a model of 8B's shape.

    python benchmarks/gpu.py                       # about five minutes on an H100; writes docs/results/gpu-h100.*
    python benchmarks/gpu.py --device cuda:1 --minutes 3    # stops in between; the same command goes on later
    python benchmarks/gpu.py --tiny                # the same in miniature on the CPU, kernels interpreted
    python benchmarks/gpu.py --page-only           # writes the pages of all GPUs anew, of the figures beside them

One process, one device; a piece that needs more memory than is free is left out. Every piece is journaled when it is
done, and is not done again. Weights, tokens and slots are random: what is measured is time and memory.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

RESULTS = Path(__file__).resolve().parent.parent / "docs" / "results"
KERNELS, MODELS, CEILING = "kernel", "model", "ceiling"
Found = dict[str, Any]


class Piece(NamedTuple):
    """Work that is journaled together."""

    kind: str
    name: str
    setting: dict[str, Any]
    work: Callable[[], Found]


def main() -> None:
    """Measures what the journal lacks, writes the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", help="one GPU")
    parser.add_argument("--minutes", type=float, default=8, help="no piece is begun after that")
    parser.add_argument("--tiny", action="store_true", help="in miniature, on the CPU where there is no GPU")
    parser.add_argument("--journal", type=Path, default=Path("gpu.jsonl"), help="what was measured so far")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the GPU's page and its figures")
    parser.add_argument("--page-only", action="store_true", help="all pages anew, of the figures beside them")
    options = parser.parse_args()
    if options.page_only:
        from gpu_tables import rewrite

        print(rewrite(options.out))
        return
    if not torch.cuda.is_available():
        if not options.tiny:
            sys.exit("No GPU is here, so nothing can be timed; --tiny tries the program on the CPU.")
        # Before anything imports Triton.
        os.environ["TRITON_INTERPRET"], options.device = "1", "cpu"
    from reporting import resumable

    resumable(partial(run, torch.device(options.device), options))


def run(device: torch.device, options: argparse.Namespace) -> None:
    """All pieces that are missing, until the time is over."""
    from gpu_tables import write
    from reporting import software
    from winnow.estimate.journal import Journal

    if device.type == "cuda":
        if device.index is not None:
            torch.cuda.set_device(device)
        device = torch.device("cuda", torch.cuda.current_device())
    begin = time.monotonic()
    journal = Journal.open(options.journal, {"device": _name(device), "tiny": options.tiny, **software(device)})
    known = {(record["kind"], record["name"]): record for record in journal.records()}
    for piece in pieces(device, options.tiny, known):
        if (piece.kind, piece.name) in known:
            continue
        if time.monotonic() - begin > 60 * options.minutes:
            print(f"{options.minutes:g} minutes are over; the same command goes on.", file=sys.stderr)
            break
        print(f"{piece.kind}: {piece.name}", file=sys.stderr, flush=True)
        start = time.monotonic()
        record = {"kind": piece.kind, "name": piece.name, **piece.setting, **_done(piece)}
        record["seconds"] = round(time.monotonic() - start, 1)
        journal.append(record)
        known[piece.kind, piece.name] = record
    print(write(options.out, list(known.values())))


def _done(piece: Piece) -> Found:
    """Findings of a piece; others may use the device as well, so that memory which was free is free no more."""
    try:
        return piece.work()
    except torch.OutOfMemoryError:
        return {"skipped": "out of memory"}


def pieces(device: torch.device, tiny: bool, known: dict[tuple[str, str], Found]) -> Iterator[Piece]:
    """All work in order; `known` gets what is found on the way."""
    from gpu_clock import Clock, copy_bandwidth
    from gpu_kernels import measure_kernel, settings
    from gpu_layers import Shape
    from reporting import machine

    clock = Clock(device, rounds=1 if tiny else 15)
    told = {"machine": f"{_name(device)}. {machine(device)}"}
    yield Piece(CEILING, "copy", told, lambda: {"gb_s": copy_bandwidth(clock, 1 if tiny else 1024)})
    ceiling = known.get((CEILING, "copy"), {"gb_s": 1.0})["gb_s"]
    shape = Shape(2, 2, 32, torch.float32) if tiny else Shape(8, 4, 128, torch.bfloat16)
    stores = PACKED[:1] if tiny else PACKED
    lengths, rows = ((32,), (1,)) if tiny else ((1024, 8192, 32768, 131072), (1, 8, 64))
    for setting in settings(lengths, rows, stores):
        work = partial(measure_kernel, setting, shape, clock, ceiling)
        yield Piece(KERNELS, setting.name, setting._asdict(), work)
    yield from model_pieces(clock, tiny, known)


def model_pieces(clock: Any, tiny: bool, known: dict[tuple[str, str], Found]) -> Iterator[Piece]:
    """A model and its caches; it is made where a piece is missing."""
    from gpu_models import Setting, build, eight_billion, measure_model, miniature

    lengths = (96,) if tiny else (8192, 32768, 122880)
    wanted = [Setting(cache, tokens) for tokens in lengths[:2] for cache in CACHES]
    wanted += [Setting(cache, lengths[0], 2 if tiny else 8) for cache in BATCHED]
    wanted += [Setting(SLOWEST_TO_PACK, lengths[0]), Setting(LONG[-1], lengths[0], compiled=True)]
    wanted += [Setting(cache, lengths[-1]) for cache in (*LONG, FEWEST)]
    if all((MODELS, setting.name) in known for setting in wanted):
        return
    model = build(miniature() if tiny else eight_billion(), clock.device, torch.float32 if tiny else torch.bfloat16)
    for setting in wanted:
        yield Piece(MODELS, setting.name, setting._asdict(), partial(measure_model, setting, model, clock))


def _name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU, kernels interpreted"


PACKED: Sequence[str] = (
    *("bits(8)", "spark(0.5)", "bits(4)", "bits(2)", "bits(6)", "bits(3)", "bits(4, group=32)", "kivi(4)"),
    *("think(0.5)", "spark(0.8)+bits(8)"),
)
CACHES: Sequence[str] = (
    *("stock", "static", "full", "snapkv @ 2%", "adakv @ 2%", "aperturekv @ 2%", "full+spark(0.5)", "full+bits(8)"),
    "full+bits(k=8, v=4)",
)
LONG: Sequence[str] = ("static", "adakv @ 2%")
"""Caches of the longest prompt, whose prefill takes most of the time."""
FEWEST = "snapkv @ 128"
"""A case of the longest prompt; CoKV reports a quarter of the full cache's latency with as many slots."""
SLOWEST_TO_PACK = "full+bits(4, group=64, round=queries, scales=signed)"
"""A case of the shortest prompt: what rounding where queries look adds to its prefill."""
BATCHED: Sequence[str] = ("stock", "static", "full", "snapkv @ 2%", "adakv @ 2%")


if __name__ == "__main__":
    main()
