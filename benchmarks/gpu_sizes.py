"""Launch sizes of a decode step on a GPU, tried: slots looked at together, warps, stages, registers, chunks.

    python benchmarks/gpu_sizes.py                     # some minutes on an H200; writes docs/results/gpu_sizes.*
    python benchmarks/gpu_sizes.py --dims 128 --stores full "bits(4)"     # others that were tried before stay
    python benchmarks/gpu_sizes.py --tiny --out FOLDER # in miniature on the CPU, kernels interpreted

What `winnow.kernels.gpu` chooses for one token in 16 bits is held against this table. Sizes that do not fit, or with
which the output is another one, are left out. Kernels are compiled by several processes first.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext, suppress
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch

RESULTS = Path(__file__).resolve().parent.parent / "docs" / "results"
STORES = (
    *("full", "bits(8)", "bits(4)", "bits(3)", "bits(2)", "bits(4, group=32)", "kivi(4)", "kivi(2)", "think(0.5)"),
    *("spark(0.5)", "spark(0.8)+bits(8)", "spark(0.5)+bits(4)", "spark-p", "spark(0.5, values=0.5)"),
)
LAYERS = ((32768, 1), (8192, 8))
"""Slots of a head, and rows."""
CHUNKS = (2, 4)
"""Chunks for every multiprocessor."""
CLOSE = 0.02
"""Difference of outputs with other sizes, at most: they are rounded elsewhere."""


class Tried(NamedTuple):
    """Sizes of a program, and chunks for every multiprocessor."""

    slots: int
    warps: int
    stages: int
    registers: int | None
    """At most, of a thread."""
    chunks: int


def main() -> None:
    """Tries all sizes, writes the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dims", type=int, nargs="+", default=[128, 64, 256], help="head sizes")
    parser.add_argument("--stores", nargs="+", default=list(STORES))
    parser.add_argument("--tiny", action="store_true", help="two sizes of small layers")
    parser.add_argument("--out", type=Path, help="folder for gpu_sizes.md and gpu_sizes.json, if not docs/results")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="that compile")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        if not options.tiny:
            sys.exit("No GPU is here, so nothing can be timed; --tiny tries the program on the CPU.")
        os.environ["TRITON_INTERPRET"] = "1"  # before anything imports Triton
    if options.tiny and (options.out is None or options.out.resolve() == RESULTS):
        parser.error("--tiny needs an --out of its own: a miniature would replace what was measured")
    wanted = [(store, dim) for dim, store in product(options.dims, options.stores)]
    if not options.tiny:
        compile_ahead(wanted, options.processes)
    folder, text = options.out or RESULTS, ""
    machine = _machine() + (" In miniature." if options.tiny else "")
    for layer in wanted:  # written one by one: what was measured stays if the next one fails
        kept = others(folder, layer, machine)
        text = write(folder, [*kept, *measured(*layer, options.tiny)], machine)
    print(text)


def compile_ahead(layers: Sequence[tuple[str, int]], processes: int) -> None:
    """Has every kernel in Triton's cache."""
    tasks = [(store, dim, tried) for store, dim in layers for tried in (None, *programs(store, dim))]
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        list(pool.map(_compile, [tasks[first::processes] for first in range(processes)]))


def _compile(tasks: Sequence[tuple[str, int, Tried | None]]) -> None:
    from gpu_layers import Shape, layer

    torch.set_num_threads(1)
    for store, dim, tried in tasks:
        with suppress(Exception):  # sizes that do not fit are told when they are timed
            stepped(layer(store, [256] * 8, Shape(8, 4, dim, torch.bfloat16), _device(), 1), tried)()


def others(folder: Path, anew: tuple[str, int], machine: str) -> list[dict[str, Any]]:
    """Records of other stores and head sizes. Ends the program where they are another machine's."""
    path = folder / "gpu_sizes.json"
    if not path.exists():
        return []
    found = json.loads(path.read_text(encoding="utf-8"))
    if found["machine"] != machine:
        sys.exit(f"{path} is of another machine ({found['machine']}): move it away, or give another --out.")
    return [each for each in found["results"] if (each["store"], each["dim"]) != anew]


def _device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


def _machine() -> str:
    from reporting import machine

    name = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU, kernels interpreted"
    return f"{name}. {machine(_device())}"


def programs(store: str, dim: int) -> Iterator[Tried]:
    """Programs to try, each with the fewest chunks: KIVI's slots share scales by 32."""
    masked = store.startswith("spark")
    warps, stages, registers = (4, 8) if masked else (4,), (3,) if masked else (2, 3), (None, 128)
    for slots, each, way, most in product((32, 64, 128), warps, stages, registers):
        if slots * dim <= 1 << (13 if masked else 14):
            yield Tried(slots, each, way, most, CHUNKS[0])


def sizes(store: str, dim: int, tiny: bool) -> Iterator[Tried]:
    """All sizes to try."""
    for each in list(programs(store, dim))[: 1 if tiny else None]:
        yield from (each._replace(chunks=chunks) for chunks in CHUNKS)


def measured(store: str, dim: int, tiny: bool) -> list[dict[str, Any]]:
    """Milliseconds by sizes: those that are chosen, then those that are tried."""
    from gpu_clock import Clock
    from gpu_layers import Shape, layer

    device = _device()
    on_gpu = device.type == "cuda"
    shape = Shape(8, 4, dim, torch.bfloat16) if on_gpu else Shape(2, 2, dim, torch.float32)
    clock = Clock(device, rounds=1 if tiny else 8)
    records: list[dict[str, Any]] = []
    for slots, rows in ((64, 1),) if tiny else LAYERS:
        made = layer(store, [slots] * shape.heads, shape, device, rows)
        expected = stepped(made, None)().float()
        for each in (None, *sizes(store, dim, tiny)):
            try:
                run = stepped(made, each)
                error = float((run().float() - expected).abs().max())
                times = clock.times({"ours": run})
            except Exception as problem:
                # Triton raises its own errors where a program is too large.
                print(f"{store}, D {dim}, {each}: {type(problem).__name__}", file=sys.stderr)
                continue
            if error < CLOSE:
                record = {"store": store, "dim": dim, "tokens": slots, "rows": rows, "ms": times.median("ours")}
                records.append({**record, "sizes": each})
    return records


def stepped(made: Any, tried: Tried | None) -> Any:
    """A step of a layer with other sizes, or those that are chosen."""
    from winnow.kernels.gpu import plan
    from winnow.kernels.gpu.launching import Sizes, attending

    def sized(*args: Any) -> Sizes:
        chosen = attending(*args)
        if tried is None:
            return chosen
        return chosen._replace(slots=tried.slots, warps=tried.warps, stages=tried.stages, registers=tried.registers)

    chunks: dict[str, Any] = {}
    if tried is not None:
        chunks = {"OF_A_PROCESSOR": tried.chunks, "PACKED_OF_A_PROCESSOR": tried.chunks}
    with mock.patch.multiple(plan, **chunks) if chunks else nullcontext():
        step = plan.TritonPlan(made.prefixes, made.tail, made.spec)

    def run() -> Any:
        with mock.patch.object(plan, "attending", sized):
            return step.run(made.query)

    return run


def write(folder: Path, records: Sequence[dict[str, Any]], machine: str) -> str:
    """gpu_sizes.md and gpu_sizes.json; returns the former."""
    from reporting import markdown_table, write_results

    groups: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for record in records:
        groups.setdefault((record["store"], record["dim"]), []).append(record)
    head = ["store", "D", *(f"chosen, {n:,} slots, {r} rows" for n, r in LAYERS), "fastest", "next", "next"]
    body = [_row(store, dim, group) for (store, dim), group in groups.items()]
    about = (
        "Microseconds of a layer's decode step, 8 KV heads, 4 queries each, in bf16. *Chosen*: by "
        "`winnow.kernels.gpu`. Others are slots looked at together, warps and stages of a program, registers of a "
        "thread at most (-: as many as the compiler likes), and chunks for every multiprocessor; fastest by both "
        "layers together."
    )
    text = f"# Launch sizes on a GPU\n\n{machine}\n\n{about}\n\n{markdown_table(head, body)}\n\n"
    text += "Repeat it: `python benchmarks/gpu_sizes.py`.\n"
    write_results(folder, "gpu_sizes", text, [*records], machine)
    return text


def _row(store: str, dim: int, group: Sequence[dict[str, Any]]) -> list[str]:
    by_sizes: dict[Any, list[float]] = {}
    for record in group:
        by_sizes.setdefault(None if record["sizes"] is None else tuple(record["sizes"]), []).append(record["ms"])
    chosen = [f"{1e3 * ms:.0f}" for ms in by_sizes.pop(None, ())]
    whole = {each: times for each, times in by_sizes.items() if len(times) == len(chosen)}
    best = sorted(whole, key=lambda each: sum(whole[each]))[:3]
    told = [f"{_told(each)}: {' and '.join(f'{1e3 * ms:.0f}' for ms in whole[each])}" for each in best]
    return [store, str(dim), *chosen, *[""] * (len(LAYERS) - len(chosen)), *told, *[""] * (3 - len(told))]


def _told(sizes: Sequence[int | None]) -> str:
    return ", ".join("-" if each is None else str(each) for each in sizes)


if __name__ == "__main__":
    main()
