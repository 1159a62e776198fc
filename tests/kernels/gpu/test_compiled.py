"""Kernels compiled ahead of time, as for GPUs that are not here, against the committed table of what they take."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton.backends.nvidia")
ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "benchmarks" / "gpu_resources.py"
FEW, MOST = 24, 240
"""Bytes of a thread that most of those spill that do, and that any does."""
if sys.platform != "linux":
    pytest.skip("Triton compiles on Linux", allow_module_level=True)


def run(cache: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own: this one interprets kernels."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(cache), "PYTHONPATH": os.pathsep.join(["src", *sys.path])}
    command = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def test_kernels_of_a_step_take_no_more_than_the_table_says(tmp_path: Path) -> None:
    chosen = ("--only", "full", "packing kivi(4), keys", "--dims", "128", "--dtypes", "bf16", "--queries", "1")
    done = run(tmp_path, "--check", *chosen, "--capabilities", "90", "--processes", "1")
    assert done.returncode == 0, done.stderr


def test_kernels_of_the_table_spill_no_more_than_the_page_says_and_all_fit_on_small_gpus() -> None:
    rows = json.loads((ROOT / "docs/results/gpu_resources.json").read_text(encoding="utf-8"))["results"]
    assert {row["capability"] for row in rows} == {80, 90}
    spilling = [row["stack"] for row in rows if row["stack"]]
    assert max(spilling) == MOST
    few = sum(stack <= FEW for stack in spilling)
    page = (ROOT / "docs/gpu.md").read_text(encoding="utf-8")
    told = f"{len(spilling)} of {len(rows)} spill registers, {few} of them no more than {FEW} bytes of a thread;"
    assert told in page.replace("\n", " ")
    assert f"up to {MOST}" in page
    assert [row for row in rows if row["capability"] == 80 and row["shared"] > 99 * 1024] == []
