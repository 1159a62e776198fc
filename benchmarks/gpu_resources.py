"""Means that the GPU kernels take: registers, shared memory and stack, compiled ahead of time for absent GPUs.

    python benchmarks/gpu_resources.py                          # all cases, writes docs/results/gpu_resources.*
    python benchmarks/gpu_resources.py --only full "bits(4)"    # only these cases; other rows of the results stay
    python benchmarks/gpu_resources.py --missing                # cases that the results lack, after an interruption
    python benchmarks/gpu_resources.py --check                  # writes nothing; fails where a kernel takes more

Kernels are those that are launched for random layers on the CPU, with the arguments that they are launched with; every
launch ends once its kernel is compiled. A stack means that registers were spilled. Results are written after every
case.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from itertools import groupby

import torch
import triton

from gpu_cases import CASES, NAMES, PACKING, Case, forms_told, launches_of, queries_of
from gpu_compiling import Launched, usage
from reporting import RESULTS, markdown_table
from winnow.files import write_text

CAPABILITIES = {80: 164, 90: 228}
"""KB of shared memory of a multiprocessor (A100, H100), by compute capability."""
REGISTERS = 65536
"""Registers of a multiprocessor."""
THREADS = 2048
LEAST_SHARED = 99
"""KB that a program may take on GPUs of compute capability 8.6, 8.9 and 12.0; measured here as for 8.0."""
SLACK = {"registers": 16, "shared": 8192, "stack": 0}
"""More than the table says, and still no failure: another compiler, a little change."""
PURPOSES = {
    "attend_chunks": "Attention of chunks",
    "prepare_queries": "Queries prepared",
    "join_chunks": "Chunks joined",
    "keep_token": "New tokens written into the tail",
    "normalize_chunks": "Scoring: largest logits and sums of weights",
    "join_normalizers": "Scoring: those of chunks joined",
    "pay_keys": "Scoring: what keys are paid",
    "pay_keys_most": "Scoring: what keys are paid by the head that pays most",
    "project_values": "Scoring: what values add to the output",
    "pack_slots": "Packing: signed integers with scales",
    "feed_slots": "Packing: signed integers whose errors make up for each other",
    "pack_ranges": "Packing: integers with scales and zeros",
    "choose_channels": "Packing: channels that slots keep",
    "take_channels": "Packing: kept numbers of rows of different length",
    "pack_rows_of_counts": "Packing: rows of different length as integers",
    "copy_slots": "Packing: channels that heads keep",
    "sum_channels": "Packing: channels of heads summed up",
}
"""Kernels in the order of the table, and what they are for."""


@dataclass(frozen=True)
class Row:
    """A kernel compiled for a compute capability."""

    kernel: str
    forms: str
    """Forms of keys and values, where the kernel reads any, and "tail" where those of the tail; steps of others."""
    dtype: str
    dim: int
    queries: int
    """Queries of a program; 0 where it has none."""
    capability: int
    warps: int
    registers: int
    """Registers of a thread."""
    shared: int
    """Bytes of a program."""
    stack: int
    """Bytes of a thread."""
    store: str
    """The case that it was met in first: a store, or what is done at the end of a prefill."""

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


Job = tuple[Case, int]
"""A case, and the compute capability that it is compiled for."""


@dataclass
class Table:
    """Kernels that were compiled, those of several cases once."""

    rows: dict[tuple[object, ...], Row] = field(default_factory=dict)
    cases: list[str] = field(default_factory=list)
    """Names of the cases that are in it."""
    triton: str = triton.__version__
    """The compiler of all of them."""

    def add(self, job: Job, rows: Sequence[Row]) -> None:
        """Puts the kernels of a case in, or in the place of what was there of them."""
        self.rows |= {row.key: row for row in rows if self._first(row)}
        self.cases += [name_of(job)] * (name_of(job) not in self.cases)

    def _first(self, row: Row) -> bool:
        """True unless another case stands for the kernel."""
        return row.key not in self.rows or self.rows[row.key].store == row.store


def name_of(job: Job) -> str:
    """A case and a capability in words, by which results know them."""
    return f"{job[0].told}, {job[1] / 10:.1f}"


JOBS = tuple((case, capability) for case in CASES for capability in CAPABILITIES)


def _row(case: Case, capability: int, launched: Launched) -> Row:
    given, metadata = launched.arguments, launched.compiled.metadata
    registers, stack = usage(launched.compiled)
    return Row(
        metadata.name,
        forms_told(given),
        NAMES[case.dtype],
        case.dim,
        queries_of(given),
        capability,
        metadata.num_warps,
        registers,
        metadata.shared,
        stack,
        case.what.removeprefix(PACKING),
    )


def rows_of(job: Job) -> list[Row]:
    """The kernels of a case for a compute capability."""
    return [_row(*job, launched) for launched in launches_of(*job)]


def measured(jobs: Sequence[Job], processes: int) -> Iterator[tuple[Job, list[Row]]]:
    """The kernels of cases for compute capabilities, each when it is there and in their order."""
    with ProcessPoolExecutor(processes, initializer=_quietly) as pool:
        for job, rows in zip(jobs, pool.map(rows_of, jobs), strict=True):
            print(name_of(job), file=sys.stderr, flush=True)
            yield job, rows


def _quietly() -> None:
    """One thread and no warnings of Triton's in a process."""
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", category=UserWarning, module="triton")


def excesses(rows: Sequence[Row], known: Table) -> Iterator[str]:
    """Means that kernels take and must not, or more of them than a table says."""
    for row in rows:
        before = known.rows.get(row.key)
        if row.stack and before is None:
            yield f"{row.key} spills: a stack of {row.stack} bytes"
        if row.capability == 80 and row.shared > LEAST_SHARED * 1024:
            yield f"{row.key} takes {row.shared:,} bytes of shared memory; not all GPUs have more than 99 KB"
        for name, slack in SLACK.items() if before is not None else ():
            now, then = getattr(row, name), getattr(before, name)
            if now > then + slack:
                yield f"{row.key} takes {now} ({name}); the table says {then}"


# --- tables ---------------------------------------------------------------------------------------------------------


def read_table() -> Table:
    """The committed kernels."""
    path = RESULTS / "gpu_resources.json"
    if not path.exists():
        return Table()
    found = json.loads(path.read_text(encoding="utf-8"))
    rows = [Row(**each) for each in found["results"]]
    return Table({row.key: row for row in rows}, found["cases"], found["triton"])


def going_on(known: Table) -> Table:
    """The committed kernels, to put others beside. Ends the program where another compiler's would stand there."""
    if known.triton != triton.__version__:
        sys.exit(
            f"The table is of Triton {known.triton}, and this is {triton.__version__}: compile all cases, without "
            f"options that choose some, or install Triton {known.triton}."
        )
    return known


def write_tables(table: Table) -> None:
    """The tables for people and the one for programs, rows in the order of cases."""
    order = {case.what.removeprefix(PACKING): number for number, case in reversed(list(enumerate(CASES)))}
    kernels = list(PURPOSES)
    rows = table.rows.values()
    ordered = sorted(rows, key=lambda row: (kernels.index(row.kernel), row.dim, order[row.store], *map(str, row.key)))
    write_text(RESULTS / "gpu_resources.md", _page(ordered, table.cases))
    found = {"triton": triton.__version__, "cases": table.cases, "results": [asdict(row) for row in ordered]}
    write_text(RESULTS / "gpu_resources.json", json.dumps(found, indent=1) + "\n")


def _page(rows: Sequence[Row], cases: Sequence[str]) -> str:
    lines = [
        "# Means that the GPU kernels take\n",
        f"Compiled ahead of time by Triton {triton.__version__} for compute capability 8.0 (A100) and 9.0 (H100, "
        "H200); nothing was run. Where two numbers stand, the first is of 8.0.\n",
        "*Registers* are a thread's, *KB* the shared memory of a program, *programs* those that fit on a "
        "multiprocessor. A *stack*, in bytes of a thread, means that registers were spilled. A kernel stands beside "
        "the store that it was met in first; others may share it.\n",
        _summary(rows, cases),
    ]
    for kernel, of_kernel in groupby(rows, key=lambda row: row.kernel):
        lines.append(f"\n## {PURPOSES[kernel]}: `{kernel}`")
        for dim, of_dim in groupby(of_kernel, key=lambda row: row.dim):
            lines.append(f"\nHeads of {dim} channels:\n")
            lines.append(_table(list(of_dim)))
    lines.append(
        "\nRepeat it: `python benchmarks/gpu_resources.py` (about twenty minutes of a core). [How they run](../gpu.md)."
    )
    return "\n".join(lines) + "\n"


def _summary(rows: Sequence[Row], cases: Sequence[str]) -> str:
    """Kernels, those that spill, the most shared memory, and what is not there yet."""
    spilling = sum(row.stack > 0 for row in rows)
    most = max((row.shared for row in rows if row.capability == 80), default=0) / 1024
    told = "none spills" if not spilling else f"{spilling} spill"
    summary = f"Of {len(rows)} compiled kernels {told}. For 8.0 none takes more than {most:.0f} KB of shared memory."
    missing = [name for name in map(name_of, JOBS) if name not in cases]
    if missing:
        summary += (
            f'\n\n**{len(missing)} of {len(JOBS)} cases are not compiled yet**, from "{missing[0]}" on; '
            "`python benchmarks/gpu_resources.py --missing` adds them."
        )
    return summary


def _table(rows: Sequence[Row]) -> str:
    """Rows of a kernel and a head size; those of a form for all capabilities are one line."""
    lines: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        lines.setdefault((row.store, *row.key[:-1]), []).append(row)
    names = ("met in", "form", "dtype", "queries", "warps", "registers", "KB", "stack", "programs")
    head: dict[str, list[str]] = {name: [] for name in names}
    for same in lines.values():
        same.sort(key=lambda row: row.capability)
        first = same[0]
        cells = (first.store, first.forms, first.dtype, first.queries or "")
        taken = (
            _both([row.warps for row in same]),
            _both([row.registers for row in same]),
            _both([round(row.shared / 1024) for row in same]),
            _both([row.stack for row in same]),
            _both([row.programs for row in same]),
        )
        for column, cell in zip(head.values(), (*cells, *taken), strict=True):
            column.append(str(cell))
    filled = {name: column for name, column in head.items() if any(column)}
    return markdown_table(list(filled), list(zip(*filled.values(), strict=True)))


def _both(numbers: Sequence[int]) -> str:
    """One number where all are the same."""
    return str(numbers[0]) if len(set(numbers)) == 1 else ", ".join(map(str, numbers))


def main() -> None:
    """Parses arguments, compiles, checks or writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[], metavar="STORE", help="stores and others, of those in CASES")
    parser.add_argument("--dims", nargs="+", type=int, default=[], help="head sizes, of those in CASES")
    parser.add_argument("--dtypes", nargs="+", default=[], choices=sorted(NAMES.values()))
    parser.add_argument("--queries", nargs="+", type=int, default=[], help="tokens of a step, of those in CASES")
    parser.add_argument("--capabilities", nargs="+", type=int, default=list(CAPABILITIES), choices=list(CAPABILITIES))
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--missing", action="store_true", help="only cases that the results lack")
    parser.add_argument("--check", action="store_true", help="compares with the table instead of writing it")
    options = parser.parse_args()
    if os.environ.get("TRITON_INTERPRET") == "1":
        sys.exit("Kernels under Triton's interpreter are not compiled; leave TRITON_INTERPRET unset.")
    known, found = read_table(), Table()
    problems: list[str] = []
    wanted = [job for job in JOBS if _wanted(job, options) and not (options.missing and name_of(job) in known.cases)]
    if not wanted:
        sys.exit("No case has this store, head size and dtype, or none is missing; see CASES.")
    if len(wanted) < len(JOBS) and not options.check:
        found = going_on(known)
    for job, rows in measured(wanted, options.processes):
        for problem in excesses(rows, known if options.check else Table()):
            # Told at once: a check of all cases takes long, and may be cut short.
            print(problem, file=sys.stderr, flush=True)
            problems.append(problem)
        if not options.check:
            found.add(job, rows)
            write_tables(found)
    if problems:
        sys.exit("\n".join(dict.fromkeys(problems)))


def _wanted(job: Job, options: argparse.Namespace) -> bool:
    """True for a case that options leave in."""
    case, capability = job
    facts = (
        (case.what, options.only),
        (case.dim, options.dims),
        (NAMES[case.dtype], options.dtypes),
        (case.queries, options.queries),
    )
    return capability in options.capabilities and all(fact in (those or [fact]) for fact, those in facts)


if __name__ == "__main__":
    main()
