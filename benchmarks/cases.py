"""Runs of pytest as rows of a table: how many cases there were, what became of them, how long they took."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as xml
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from reporting import markdown_table

ROOT = Path(__file__).resolve().parent.parent
HEAD = ("area", "cases", "refused", "right", "skipped", "failed", "seconds")


@dataclass(frozen=True)
class Row:
    """The cases of an area, counted by what became of them."""

    area: str
    cases: int
    refused: int
    """Passed, and said that the input was refused (a test records its `outcome`)."""
    right: int
    """All others that passed."""
    skipped: int
    failures: tuple[str, ...]
    """The tests that failed, and the run itself where it broke off."""
    seconds: float
    interrupted: bool = False

    def record(self) -> dict[str, Any]:
        """The row for programs."""
        return asdict(self)

    def cells(self) -> list[str]:
        """The row for people, in the order of HEAD."""
        area = f"{self.area} (interrupted)" if self.interrupted else self.area
        counts = (self.cases, self.refused, self.right, self.skipped, len(self.failures))
        return [area, *(f"{count:,}" for count in counts), f"{self.seconds:.0f}"]


def table(rows: Sequence[Row]) -> str:
    """All rows, and their sum."""
    counts = [sum(each) for each in zip(*((r.cases, r.refused, r.right, r.skipped) for r in rows), strict=True)]
    failed, seconds = sum(len(row.failures) for row in rows), sum(row.seconds for row in rows)
    total = ["all", *(f"{count:,}" for count in (*counts, failed)), f"{seconds:.0f}"]
    return markdown_table(HEAD, [*(row.cells() for row in rows), total])


def run_tests(area: str, arguments: Sequence[str], environment: Mapping[str, str]) -> Row:
    """One run of pytest in the repository's root, its output shown as it comes.

    arguments: of pytest. environment: what is set beside this process's own. After an interrupt the row has the cases
    that were done.
    """
    print(f"\n{area}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "--tb=short", f"--junitxml={report}", *arguments]
        start = time.perf_counter()
        process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, **environment})
        interrupted = _interrupted(process)
        return _row(area, report, process.returncode, time.perf_counter() - start, interrupted)


def _interrupted(process: subprocess.Popen[bytes]) -> bool:
    """Waits for a process; True if an interrupt ended it, which leaves it the time to write its report."""
    try:
        process.wait()
    except KeyboardInterrupt:
        try:
            # A terminal interrupts both.
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            process.wait(60)
        return True
    return False


def _row(area: str, report: Path, code: int, seconds: float, interrupted: bool) -> Row:
    if not report.exists():
        return Row(area, 0, 0, 0, 0, (f"pytest ended with {code}",), seconds, interrupted)
    cases = list(xml.parse(report).getroot().iter("testcase"))
    failures = [_name(case) for case in cases if case.find("failure") is not None or case.find("error") is not None]
    skipped = sum(case.find("skipped") is not None for case in cases)
    refused = sum(any(each.get("value") == "refused" for each in case.iter("property")) for case in cases)
    if code and not failures and not interrupted:
        failures.append(f"pytest ended with {code}")
    right = len(cases) - len(failures) - skipped - refused
    return Row(area, len(cases), refused, right, skipped, tuple(failures), seconds, interrupted)


def _name(case: xml.Element) -> str:
    return f"{case.get('classname')}::{case.get('name')}"
