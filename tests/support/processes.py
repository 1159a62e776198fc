"""Processes of their own for tests, with the sources that the tests run on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import winnow

SOURCES = str(Path(winnow.__file__).parents[1])


def environment(*paths: Path, **more: str) -> dict[str, str]:
    """The environment of a process that imports winnow; paths: to be searched for modules before all others."""
    searched = filter(None, [*map(str, paths), SOURCES, os.environ.get("PYTHONPATH")])
    return {**os.environ, "PYTHONPATH": os.pathsep.join(searched), "OMP_NUM_THREADS": "1", **more}


def python(code: str, *arguments: str, paths: tuple[Path, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Runs code in a fresh interpreter."""
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, env=environment(*paths), capture_output=True, text=True, timeout=120)


def is_alive(number: int) -> bool:
    """True if a process runs; one that has ended may still be listed."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
