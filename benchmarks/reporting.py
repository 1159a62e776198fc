"""The common part of all benchmarks: the machine in words, tables, result files."""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

import winnow
from winnow.errors import WinnowError
from winnow.files import write_text
from winnow.kernels import backend, native
from winnow.runs.environment import processor_name

DTYPES = {torch.bfloat16: "bfloat16", torch.float32: "float32"}
"""Types in which layers are timed, by name."""


def machine(device: torch.device | None = None) -> str:
    """One line on what a result was measured with; device: whose kernels, where not the CPU's."""
    return (
        f"Measured on {processor_name()}, {threads(torch.get_num_threads())}, torch {torch.__version__}, "
        f"transformers {transformers.__version__}, winnow {winnow.__version__}, kernels: {backend(device)}{pages()}"
        f"{limits()}."
    )


def software(device: torch.device | None = None) -> dict[str, str]:
    """Versions and kernels, for the configuration of a journal: what one measured is not another's."""
    versions = {each.__name__: each.__version__ for each in (torch, transformers, winnow)}
    return {**versions, "kernels": backend(device)}


def pages() -> str:
    """Behind a machine: the pages on which torch puts large tensors, where they are not the usual ones."""
    return ", large tensors on pages of 2 MB" if os.environ.get("THP_MEM_ALLOC_ENABLE") == "1" else ""


LIMITS = ("WINNOW_ISA", "ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS", "ATEN_CPU_CAPABILITY")
"""Variables that keep libraries from a processor's best instructions: it stands for one that lacks them."""


def limits() -> str:
    """Behind a machine: what it was told to do without, if anything."""
    found = " ".join(f"{name}={os.environ[name]}" for name in LIMITS if name in os.environ)
    return f", which stands for a processor without better instructions (`{found}`)" if found else ""


RESULTS = Path(__file__).resolve().parent.parent / "docs" / "results"
VENDORS = {"GenuineIntel": "intel", "AuthenticAMD": "amd"}
EARLIER = {"amd": ("zen4", "avx2"), "intel": ("avx512bf16", "avx512vnni", "avx512", "avx2")}
"""Kernels whose processors are not a vendor's latest: these have pages of their own."""


def vendor() -> str:
    """Whose processor this is, in a word that files are named with."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("vendor_id")]
    return VENDORS.get(names[0], names[0].lower()) if names else platform.machine().lower()


def of_this_processor(name: str) -> str:
    """A page's name where processors have one each, so that a run on one leaves the others' figures alone.

    It ends with the vendor, and with the kernels' name on EARLIER ones.
    """
    whose, kernels = vendor(), native.isa() if native.library() else ""
    return f"{name}-{whose}" + (f"-{kernels}" if kernels in EARLIER.get(whose, ()) else "")


def threads(count: int | str) -> str:
    """So many threads in words."""
    return f"{count} thread{'' if str(count) == '1' else 's'}"


def end_in_order() -> None:
    """Has SIGTERM end this process as an exit does: what it has started is stopped, too."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))


def resumable(main: Callable[[], None]) -> None:
    """Runs a study that keeps what it found; an interrupt and an error on purpose end it with one line."""
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("Interrupted; the same command goes on where it was.")
    except WinnowError as problem:
        sys.exit(str(problem))


def rounds_and_folder(about: str | None, rounds: int) -> argparse.Namespace:
    """The options of a benchmark that has no others: how many `rounds`, and the folder `out` of its results."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    return parser.parse_args()


def measured_apart(arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> Any:
    """JSON that the running benchmark prints last when it is given other arguments, in a process of its own.

    environment: what is set there besides. Raises CalledProcessError where the process fails.
    """
    command = [sys.executable, sys.argv[0], *arguments]
    done = subprocess.run(
        command, env={**os.environ, **(environment or {})}, stdout=subprocess.PIPE, text=True, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def markdown_table(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """A GitHub table, columns aligned so that it also reads as plain text."""
    widths = [max(len(row[i]) for row in [head, *body]) for i in range(len(head))]
    lines = [head, ["-" * width for width in widths], *body]
    return "\n".join("| " + " | ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) + " |" for row in lines)


def write_results(
    folder: Path, name: str, text: str, records: list[dict[str, Any]], measured_on: str | None = None
) -> None:
    """`name`.md for people and `name`.json for programs; measured_on: where it was, if not this machine's CPU."""
    write_text(folder / f"{name}.md", text)
    found = {"machine": measured_on or machine(), "results": records}
    write_text(folder / f"{name}.json", json.dumps(found, indent=1) + "\n")


def name_of(dtype: torch.dtype) -> str:
    """fp32, bf16 or fp16."""
    return {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}[dtype]
