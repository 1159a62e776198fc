"""Means that the GPU kernels take: registers, shared memory and stack, compiled ahead of time for absent GPUs.

    python benchmarks/gpu_resources.py                          # all cases, writes docs/results/gpu_resources.*
    python benchmarks/gpu_resources.py --only full "bits(4)"    # only these stores; other rows of the results stay
    python benchmarks/gpu_resources.py --check                  # writes nothing; fails where a kernel takes more

Kernels are those that a decode step launches, with the arguments that it launches them with: a plan is made of random
layers on the CPU, and every launch ends once its kernel is compiled. A stack means that registers were spilled.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from gpu_layers import Shape, layer
from reporting import markdown_table
from winnow.files import write_text
from winnow.kernels.gpu.forms import Form
from winnow.kernels.gpu.plan import TritonPlan

RESULTS = Path(__file__).resolve().parent.parent / "docs" / "results"
CAPABILITIES = {80: 164, 90: 228}
"""KB of shared memory of a multiprocessor (A100, H100), by compute capability."""
REGISTERS = 65536
"""Registers of a multiprocessor."""
THREADS = 2048
LEAST_SHARED = 99
"""KB that a program may take on GPUs of compute capability 8.6, 8.9 and 12.0; measured here as for 8.0."""
SLACK = {"registers": 16, "shared": 8192, "stack": 0}
"""More than the table says, and still no failure: another compiler, a little change."""
HEADS, GROUP, SLOTS = 2, 4, 128
BF16, FP32 = torch.bfloat16, torch.float32
NAMES = {BF16: "bf16", FP32: "fp32"}


class Case(NamedTuple):
    """A layer, and a step of so many tokens."""

    store: str
    dtype: torch.dtype
    dim: int
    queries: int


STORES = (
    *("bits(8)", "bits(6)", "bits(4)", "bits(3)", "bits(2)", "bits(4, rotate=false, center=false, smooth=false)"),
    *("bits(4, group=32)", "kivi(4)", "kivi(2)", "think(0.5)", "spark(0.5)", "spark(0.8)+bits(8)", "spark-p"),
)
CHUNK = 32
"""Tokens of a turn: with their group more queries than a program takes."""
CASES = (
    *(Case("full", dtype, dim, 1) for dtype in (BF16, FP32) for dim in (64, 80, 128, 256)),
    *(Case("full", dtype, dim, CHUNK) for dtype in (BF16, FP32) for dim in (64, 128, 256)),
    *(Case(store, BF16, dim, 1) for store in STORES for dim in (64, 128)),
    *(Case(store, FP32, 128, 1) for store in STORES),
    *(Case(store, BF16, 128, CHUNK) for store in ("bits(4)", "spark(0.5)")),
    *(Case(store, BF16, 256, 1) for store in ("bits(8)", "bits(4)", "spark(0.5)")),
)


@dataclass(frozen=True)
class Row:
    """A kernel compiled for a compute capability."""

    kernel: str
    forms: str
    """Forms of keys and values, where the kernel reads any, and "tail" where those of the tail."""
    dtype: str
    dim: int
    queries: int
    """Queries of a program."""
    capability: int
    warps: int
    registers: int
    """Registers of a thread."""
    shared: int
    """Bytes of a program."""
    stack: int
    """Bytes of a thread."""
    store: str
    """The store whose layer it was met in first."""

    @property
    def key(self) -> tuple[object, ...]:
        """The kernel, whatever it takes."""
        return self.kernel, self.forms, self.dtype, self.dim, self.queries, self.capability

    @property
    def programs(self) -> int:
        """Programs that fit on a multiprocessor."""
        threads = 32 * self.warps
        shared = CAPABILITIES[self.capability] * 1024 // (self.shared + 1024)
        return min(REGISTERS // (self.registers * threads), THREADS // threads, shared)

    def cells(self) -> list[str]:
        """For the table of people."""
        facts = (self.kernel, self.forms, self.store, self.dtype, self.dim, self.queries)
        taken = (self.warps, self.registers, f"{self.shared / 1024:.0f}", self.stack, self.programs)
        return [str(each) for each in (*facts, f"{self.capability / 10:.1f}", *taken)]


HEAD = (
    *("kernel", "form", "store", "dtype", "D", "queries", "capability", "warps", "registers", "shared KB", "stack"),
    "programs",
)


class Absent:
    """A GPU that kernels can be compiled for and not launched on, as Triton asks drivers."""

    def __init__(self, capability: int) -> None:
        self._capability = capability

    def get_current_target(self) -> GPUTarget:
        """The GPU to compile for."""
        return GPUTarget("cuda", self._capability, 32)

    def get_current_device(self) -> int:
        """A number under which Triton keeps its kernels: one for every capability."""
        return self._capability

    def get_current_stream(self, device: int) -> int:
        """A number that nobody looks at."""
        return 0


class Launched(NamedTuple):
    """A launch that was not made."""

    compiled: Any
    arguments: dict[str, Any]
    """By name, as far as they were named."""


@contextmanager
def compiled_only(capability: int) -> Iterator[list[Launched]]:
    """Launches end once their kernel is compiled; the list has those since the block was entered."""
    found: list[Launched] = []
    run = JITFunction.run

    def compile_only(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        compiled = run(kernel, *args, grid=grid, warmup=True, **kwargs)
        found.append(Launched(compiled, kwargs))
        return compiled

    before = driver._active
    driver.set_active(Absent(capability))
    try:
        with mock.patch.object(JITFunction, "run", compile_only):
            yield found
    finally:
        driver.set_active(before)


def rows_of(case: Case, capability: int) -> Iterator[Row]:
    """The kernels of a decode step of a layer."""
    torch.manual_seed(0)
    shape = Shape(HEADS, GROUP, case.dim, case.dtype)
    made = layer(case.store, [SLOTS, SLOTS // 2], shape, torch.device("cpu"), queries=case.queries)
    plan = TritonPlan(made.prefixes, made.tail, made.spec)
    with compiled_only(capability) as launches:
        plan.run(made.query)
    for launched in launches:
        yield _row(case, capability, launched)


def _row(case: Case, capability: int, launched: Launched) -> Row:
    registers, stack = _usage(launched.compiled.asm["cubin"])
    given, metadata = launched.arguments, launched.compiled.metadata
    return Row(
        metadata.name,
        _forms(given),
        NAMES[case.dtype],
        case.dim,
        given["ASKED"],
        capability,
        metadata.num_warps,
        registers,
        metadata.shared,
        stack,
        case.store,
    )


def _forms(given: dict[str, Any]) -> str:
    """The forms of a launch in few words."""
    if "KEYS" not in given:
        return ""
    if given["TAIL"]:
        return "tail"
    sides = [_form(given[side]) for side in ("KEYS", "VALUES")]
    return sides[0] if sides[0] == sides[1] else ", ".join(sides)


def _form(form: Any) -> str:
    """A form's facts that are not as usual."""
    usual = Form(form.element, 16, form.numbers, aligned=form.aligned)
    facts = {name: value for name, value in vars(form).items() if value != getattr(usual, name)}
    if form.channels:
        facts["channels"] = form.numbers
    bits = facts.pop("bits", 16)
    named = [name if value is True else f"{name} {value}" for name, value in facts.items()]
    return " ".join(["dense" if bits == 16 and not named else f"{bits} bits", *named])


def _usage(cubin: bytes) -> tuple[int, int]:
    """Registers, and bytes of stack, of the only kernel in a binary."""
    with tempfile.NamedTemporaryFile("wb", suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [knobs.nvidia.cuobjdump.path, "-res-usage", file.name]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", told)
    assert found is not None, told
    return int(found[1]), int(found[2])


def measured(cases: Sequence[Case], capabilities: Sequence[int]) -> dict[tuple[object, ...], Row]:
    """All kernels of some cases, those of several once."""
    found: dict[tuple[object, ...], Row] = {}
    for case in cases:
        for capability in capabilities:
            for row in rows_of(case, capability):
                found.setdefault(row.key, row)
        print(f"{case.store}, {NAMES[case.dtype]}, D {case.dim}, {case.queries} tokens", file=sys.stderr, flush=True)
    return found


def excesses(rows: Sequence[Row], known: dict[tuple[object, ...], Row]) -> Iterator[str]:
    """Means that kernels take and must not, or more of them than a table says."""
    for row in rows:
        if row.stack:
            yield f"{row.key} spills: a stack of {row.stack} bytes"
        if row.capability == 80 and row.shared > LEAST_SHARED * 1024:
            yield f"{row.key} takes {row.shared:,} bytes of shared memory; not all GPUs have more than 99 KB"
        before = known.get(row.key)
        for name, slack in SLACK.items() if before is not None else ():
            now, then = getattr(row, name), getattr(before, name)
            if now > then + slack:
                yield f"{row.key} takes {now} ({name}); the table says {then}"


def read_table() -> dict[tuple[object, ...], Row]:
    """The committed rows."""
    path = RESULTS / "gpu_resources.json"
    rows = json.loads(path.read_text(encoding="utf-8"))["results"] if path.exists() else []
    return {row.key: row for row in (Row(**each) for each in rows)}


def write_table(rows: Sequence[Row]) -> str:
    """The table for people and the one for programs; returns the former."""
    lines = (
        "# Means that the GPU kernels take\n",
        f"Compiled ahead of time by Triton {triton.__version__} for compute capability 8.0 (A100) and 9.0 (H100, "
        "H200); nothing was run. *Programs*: how many fit on a multiprocessor. A *stack* means that registers were "
        "spilled.\n",
        markdown_table(HEAD, [row.cells() for row in rows]),
        "\nRepeat it: `python benchmarks/gpu_resources.py` (a few seconds a kernel). [How they run](../gpu.md).",
    )
    text = "\n".join(lines) + "\n"
    write_text(RESULTS / "gpu_resources.md", text)
    found = {"triton": triton.__version__, "results": [asdict(row) for row in rows]}
    write_text(RESULTS / "gpu_resources.json", json.dumps(found, indent=1) + "\n")
    return text


def main() -> None:
    """Parses arguments, compiles, checks or writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[], metavar="STORE", help="stores, of those in CASES")
    parser.add_argument("--dims", nargs="+", type=int, default=[], help="head sizes, of those in CASES")
    parser.add_argument("--dtypes", nargs="+", default=[], choices=sorted(NAMES.values()))
    parser.add_argument("--queries", nargs="+", type=int, default=[], help="tokens of a step, of those in CASES")
    parser.add_argument("--capabilities", nargs="+", type=int, default=list(CAPABILITIES), choices=list(CAPABILITIES))
    parser.add_argument("--check", action="store_true", help="compares with the table instead of writing it")
    options = parser.parse_args()
    if os.environ.get("TRITON_INTERPRET") == "1":
        sys.exit("Kernels under Triton's interpreter are not compiled; leave TRITON_INTERPRET unset.")
    warnings.filterwarnings("ignore", category=UserWarning, module="triton")
    wanted = [
        case
        for case in CASES
        if case.store in (options.only or [case.store])
        and case.dim in (options.dims or [case.dim])
        and NAMES[case.dtype] in (options.dtypes or [NAMES[case.dtype]])
        and case.queries in (options.queries or [case.queries])
    ]
    if not wanted:
        sys.exit("No case has this store, head size and dtype; see CASES.")
    found, known = measured(wanted, options.capabilities), read_table()
    problems = list(excesses(list(found.values()), known if options.check else {}))
    if not options.check:
        print(write_table(list({**known, **found}.values())))
    if problems:
        sys.exit("\n".join(problems))


if __name__ == "__main__":
    main()
