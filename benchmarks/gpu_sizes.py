"""Launch sizes of a decode step on a GPU, tried: slots that a program looks at together, its warps, its stages.

    python benchmarks/gpu_sizes.py                     # about two minutes on an H100; writes docs/results/gpu_sizes.*
    python benchmarks/gpu_sizes.py --dims 128 --stores full "bits(4)"
    python benchmarks/gpu_sizes.py --tiny              # in miniature on the CPU, kernels interpreted

What `winnow.kernels.gpu.launching` chooses for one token in 16 bits is held against this table. Sizes that do not fit,
or with which the output is another one, are left out.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from itertools import product
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
CLOSE = 0.02
"""Difference of outputs with other sizes, at most: they are rounded elsewhere."""


class Tried(NamedTuple):
    """Sizes of a program."""

    slots: int
    warps: int
    stages: int


def main() -> None:
    """Tries all sizes, writes the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dims", type=int, nargs="+", default=[128, 64, 256], help="head sizes")
    parser.add_argument("--stores", nargs="+", default=list(STORES))
    parser.add_argument("--tiny", action="store_true", help="two sizes of small layers")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for gpu_sizes.md and gpu_sizes.json")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        if not options.tiny:
            sys.exit("No GPU is here, so nothing can be timed; --tiny tries the program on the CPU.")
        os.environ["TRITON_INTERPRET"] = "1"  # before anything imports Triton
    records = [
        record for dim, store in product(options.dims, options.stores) for record in measured(store, dim, options.tiny)
    ]
    print(write(options.out, records, _machine()))


def _device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


def _machine() -> str:
    from reporting import machine

    name = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU, kernels interpreted"
    return f"{name}. {machine(_device())}"


def sizes(store: str, dim: int, tiny: bool) -> Iterator[Tried]:
    """Sizes to try: KIVI's slots share scales by 32, and rows of spark-p begin together by 32."""
    slots = [32] if store.startswith("kivi") else [16, 32] if store.startswith("spark-p") else [16, 32, 64, 128]
    every = product(slots, (2, 4, 8), (2, 3, 4))
    yield from (Tried(*each) for each in list(every)[: 2 if tiny else None] if each[0] * dim <= 1 << 14)


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
        return chosen if tried is None else chosen._replace(**tried._asdict(), registers=None)

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
        "`winnow.kernels.gpu.launching`. Others are slots looked at together, warps and stages of a program; fastest "
        "by both layers together."
    )
    text = f"# Launch sizes on a GPU\n\n{machine}\n\n{about}\n\n{markdown_table(head, body)}\n\n"
    text += "Repeat it: `python benchmarks/gpu_sizes.py`.\n"
    write_results(folder, "gpu_sizes", text, [*records], machine)
    return text


def _row(store: str, dim: int, group: Sequence[dict[str, Any]]) -> list[str]:
    by_sizes: dict[Any, list[float]] = {}
    for record in group:
        by_sizes.setdefault(None if record["sizes"] is None else tuple(record["sizes"]), []).append(record["ms"])
    chosen = [f"{1e3 * ms:.0f}" for ms in by_sizes.pop(None)]
    whole = {each: times for each, times in by_sizes.items() if len(times) == len(chosen)}
    best = sorted(whole, key=lambda each: sum(whole[each]))[:3]
    told = [f"{each}: {' and '.join(f'{1e3 * ms:.0f}' for ms in whole[each])}" for each in best]
    return [store, str(dim), *chosen, *[""] * (len(LAYERS) - len(chosen)), *told, *[""] * (3 - len(told))]


if __name__ == "__main__":
    main()
