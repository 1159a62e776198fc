"""CPU time until a command answers that needs no model, next to the time that importing torch takes.

    python benchmarks/startup.py                      # writes docs/results/startup.*

Every command runs in a process of its own; the commands take turns, and medians count.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
from pathlib import Path
from statistics import median

from reporting import machine, markdown_table, write_results

RESULTS = Path(__file__).resolve().parent.parent / "docs" / "results"
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
}
REFERENCE = "import torch"


def cpu_seconds(arguments: list[str]) -> float:
    """User and system time of one process that runs Python code with its arguments."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", *arguments], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Measures and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    options = parser.parse_args()
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(options.rounds):
        for name, arguments in COMMANDS.items():
            times[name].append(cpu_seconds(arguments))
    medians = {name: median(found) for name, found in times.items()}
    rows = [[f"`{name}`", f"{took:.2f} s", f"{took / medians[REFERENCE]:.2f}"] for name, took in medians.items()]
    table = markdown_table(["command", "CPU time", f"relative to `{REFERENCE}`"], rows)
    print(table)
    text = f"# Start-up\n\n`python benchmarks/startup.py`. {machine()} Medians of {options.rounds} processes each.\n\n"
    write_results(options.out, "startup", text + table + "\n", [{"command": n, "cpu_s": t} for n, t in medians.items()])


if __name__ == "__main__":
    main()
