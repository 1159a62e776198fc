"""The library against results that fuzz/exact.cpp knows, without Python: every entry point, every instruction set."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from support.instruction_sets import available, needs_native
from winnow.kernels import native

ROOT = Path(__file__).parents[2]
COMPILER = os.environ.get("CXX", "c++")
CASES = 20
KERNELS = [
    *("decode", "shared", "append", "prefill", "prune", "rotate"),
    *("linear", "stack", "mix", "norm", "rotary", "gated", "delta", "convolve", "scan", "latent"),
]

pytestmark = [needs_native, pytest.mark.skipif(not shutil.which(COMPILER), reason="no C++ compiler")]


def test_known_results_in_every_instruction_set(tmp_path: Path) -> None:
    program, library = tmp_path / "exact", Path(native.loaded_library()._name).resolve()
    folders = [f"-I{ROOT / name}" for name in ("fuzz", "native")]
    # A library with sanitizers gets what it lacks from a runtime that is loaded before the program.
    linking = [library, f"-Wl,-rpath,{library.parent}", "-Wl,--allow-shlib-undefined"]
    alone = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    command = [COMPILER, "-std=c++17", "-O1", *folders, ROOT / "fuzz" / "exact.cpp", *linking, "-o", program]
    subprocess.run(command, check=True, env=alone)
    done = subprocess.run([program, str(CASES)], check=False, capture_output=True, text=True)
    assert not done.returncode, done.stdout + done.stderr
    expected = [f"{isa}, {kernel}: {CASES} cases, 0 wrong" for isa in available() for kernel in KERNELS]
    assert sorted(done.stdout.splitlines()) == sorted(expected)
