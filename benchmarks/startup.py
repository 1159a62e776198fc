"""CPU time and resident memory of commands next to those of importing torch; one of them answers a question.

    python benchmarks/startup.py                      # writes docs/results/startup-VENDOR.*

Every command runs in a process of its own; the commands take turns, and medians count. Memory is the most that was
resident at any time.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import NamedTuple

from reporting import machine, markdown_table, of_this_processor, rounds_and_folder, write_results

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT, QUESTION = ROOT / "examples" / "report.txt", "What is the favorite fruit of Alice?"
WINNOW = "from winnow.cli import program; program()"
COMMANDS = {
    "import torch": ["import torch"],
    "import winnow": ["import winnow"],
    "winnow.CompressedCache": ["import winnow; winnow.CompressedCache"],
    "winnow --help": [WINNOW, "--help"],
    "winnow run --help": [WINNOW, "run", "--help"],
    "winnow heads --help": [WINNOW, "heads", "--help"],
    "winnow methods": [WINNOW, "methods"],
    "winnow methods --json": [WINNOW, "methods", "--json"],
    "import transformers.modeling_utils": ["import transformers.modeling_utils"],
    "winnow run": [WINNOW, "run", "--document", str(DOCUMENT), "--question", QUESTION],
}
REFERENCE = "import torch"
LAUNCHER = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
usage = resource.getrusage(resource.RUSAGE_CHILDREN)
print(usage.ru_utime + usage.ru_stime, usage.ru_maxrss)
"""
"""A small process between this one and the command: what a parent had resident counts as the child's."""


class Spent(NamedTuple):
    """Time and memory of one process."""

    seconds: float
    """User and system time."""
    mebibytes: float
    """Resident at most."""


def spent(arguments: list[str]) -> Spent:
    """One process that runs Python code with its arguments. Raises CalledProcessError where it fails."""
    command = [sys.executable, "-S", "-c", LAUNCHER, sys.executable, "-c", *arguments]
    seconds, largest = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout.split()
    return Spent(float(seconds), float(largest) / (2**20 if sys.platform == "darwin" else 2**10))


def main() -> None:
    """Measures and writes the table."""
    options = rounds_and_folder(__doc__, rounds=9)
    found: dict[str, list[Spent]] = {name: [] for name in COMMANDS}
    for _ in range(options.rounds):
        for name, arguments in COMMANDS.items():
            found[name].append(spent(arguments))
    medians = {name: Spent(*map(median, zip(*every, strict=True))) for name, every in found.items()}
    reference = medians[REFERENCE]
    rows = [
        [
            f"`{name}`",
            f"{each.seconds:.2f} s",
            f"{each.seconds / reference.seconds:.2f}",
            f"{each.mebibytes:.0f} MiB",
            f"{each.mebibytes / reference.mebibytes:.2f}",
        ]
        for name, each in medians.items()
    ]
    against = f"relative to `{REFERENCE}`"
    table = markdown_table(["command", "CPU time", against, "resident memory", against], rows)
    print(table)
    text = (
        f"# Start-up\n\n`python benchmarks/startup.py`. {machine()} Medians of {options.rounds} processes each. "
        f"`winnow run` asks the bundled model one question about `{DOCUMENT.relative_to(ROOT)}`.\n\n{table}\n"
    )
    records = [{"command": name, "cpu_s": each.seconds, "mib": each.mebibytes} for name, each in medians.items()]
    write_results(options.out, of_this_processor("startup"), text, records)


if __name__ == "__main__":
    main()
