"""Every attack, whole: the areas of tests/attack one after another, then the tests under sanitizers, as one table.

    python benchmarks/attack.py [--at-once N] [AREA ...]   # `make attack`: all of them, and docs/results/attack.*

An AREA is the name of a file in tests/attack without `test_`; with some, the table is only printed. An interrupt ends
the area that runs; what was done until then is written.
"""

from __future__ import annotations

import argparse
import ast
import sys
from pathlib import Path

from cases import ROOT, Row, run_tests, table
from reporting import machine, write_results
from sanitize import sanitize

RESULTS = ROOT / "docs" / "results"
FOLDER = ROOT / "tests" / "attack"
WHOLE = {"WINNOW_ATTACK": "whole"}
NOTE = (
    "A case is refused (a clear error of Winnow's own before anything is wrong), or right; anything else has failed: a "
    "crash, a hang, a traceback, another exception, a wrong number. Areas whose tests do not say which count all that "
    "passed as right."
)


def areas() -> dict[str, Path]:
    """Files of attacks by name."""
    return {path.stem.removeprefix("test_"): path for path in sorted(FOLDER.glob("test_*.py"))}


def title(path: Path) -> str:
    """The attack that a file names: the first line of its docstring, without the full stop."""
    return (ast.get_docstring(ast.parse(path.read_text())) or path.stem).splitlines()[0].rstrip(".")


def write(rows: list[Row]) -> None:
    """The table with what failed below it."""
    failures = [f"- `{name}`" for row in rows for name in row.failures]
    told = "\n\nFailed:\n\n" + "\n".join(failures) if failures else ""
    text = f"# What was attacked\n\n`make attack`. {NOTE}\n\n{machine()}\n\n{table(rows)}{told}\n"
    write_results(RESULTS, "attack", text, [row.record() for row in rows])


def attack(chosen: list[Path], whole: bool, at_once: int) -> list[Row]:
    """A row for each area; with `whole` also those of the sanitizers, and what there is is written after each area.

    at_once: cases of an area that run beside each other.
    """
    spread = ["-n", str(at_once), "--dist", "worksteal"] if at_once > 1 else []
    rows: list[Row] = []
    for path in chosen:
        rows.append(run_tests(title(path), [str(path.relative_to(ROOT)), *spread], WHOLE))
        if whole:
            write(rows)
        if rows[-1].interrupted:
            return rows
    if whole:
        rows += sanitize()
        write(rows)
    return rows


def main() -> None:
    """Runs, writes, prints the table; exit code 1 where a case failed, 130 after an interrupt."""
    known = areas()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("areas", nargs="*", metavar="AREA", choices=[*known, []], help=", ".join(known))
    parser.add_argument(
        "--at-once", type=int, default=1, help="cases beside each other; with more than one, an interrupt loses an area"
    )
    options = parser.parse_args()
    rows = attack([known[name] for name in options.areas or known], not options.areas, options.at_once)
    print(f"\n{table(rows)}")
    sys.exit(130 if rows[-1].interrupted else any(row.failures for row in rows))


if __name__ == "__main__":
    main()
