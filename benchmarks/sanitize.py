"""Tests on a native library that checks every access: kernels, contexts, crafted and damaged files, and its threads.

    python benchmarks/sanitize.py        # `make sanitize`

The library is built with the address sanitizer in all instruction sets, and with that for undefined behavior in what
they share; a program with several callers is built with the thread sanitizer. Needs GCC and its sanitizers.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from cases import ROOT, Row, run_tests, table

COMPILER = "g++"
BUILDS = ROOT / "build"
AREAS = {
    "kernels": ["tests/kernels", "tests/native", "--deselect", "tests/native/test_headers.py"],
    "contexts and packed caches": [
        f"tests/cache/test_{name}.py" for name in ("disk", "context", "container", "packed_caches", "fold_packed")
    ],
    "crafted and damaged files": ["tests/attack/test_crafted_contexts.py", "tests/attack/test_damaged_contexts.py"],
}


def build(source: Path, folder: Path, sanitizer: str, compiler: str = COMPILER) -> None:
    """Configures and builds a CMake project. Raises CalledProcessError where that fails."""
    near = Path(sys.executable).parent
    cmake = shutil.which("cmake", path=os.pathsep.join([str(near), os.environ.get("PATH", "")])) or "cmake"
    options = [f"-DWINNOW_SANITIZE={sanitizer}", f"-DCMAKE_CXX_COMPILER={compiler}", "-DWINNOW_INSTRUCTION_SETS=here"]
    print(f"\nbuilding {source.name} with the {sanitizer} sanitizer in {folder.relative_to(ROOT)}", flush=True)
    subprocess.run([cmake, "-S", source, "-B", folder, *options], check=True, stdout=subprocess.DEVNULL)
    subprocess.run([cmake, "--build", folder, "--parallel", str(os.cpu_count() or 1)], check=True)


def sanitize() -> list[Row]:
    """Builds and runs everything, a row each; stops after a row that was interrupted."""
    folder = BUILDS / "sanitize"
    build(ROOT / "native", folder, "address")
    reports = folder / "reports"
    shutil.rmtree(reports, ignore_errors=True)
    reports.mkdir()
    rows = []
    for area, arguments in AREAS.items():
        rows.append(run_tests(f"{area}, address and undefined behavior", arguments, _environment(folder, reports)))
        if rows[-1].interrupted:
            return rows
    for report in sorted(reports.iterdir()):
        print(f"\n{report.name}\n{report.read_text(errors='replace')[:8000]}")
    return [*rows, _threads()]


def _environment(folder: Path, reports: Path) -> dict[str, str]:
    """The library, and the runtime that it needs to find in a Python that was built without it."""
    options = f"log_path={reports / 'report'}:halt_on_error=1"
    return {
        "WINNOW_NATIVE_LIBRARY": str(folder / "libwinnow_native.so"),
        # The C++ library is loaded first, or its exceptions could not be watched.
        "LD_PRELOAD": " ".join(_runtime(name) for name in ("libasan.so", "libstdc++.so.6")),
        # Python's own memory is never given back at the end.
        "ASAN_OPTIONS": f"detect_leaks=0:allocator_may_return_null=1:{options}",
        "UBSAN_OPTIONS": f"print_stacktrace=1:{options}",
    }


def _runtime(name: str) -> str:
    found = subprocess.run([COMPILER, f"-print-file-name={name}"], check=True, capture_output=True, text=True)
    return found.stdout.strip()


def _threads() -> Row:
    """Callers of the library at once, under the thread sanitizer."""
    folder = BUILDS / "threads"
    build(ROOT / "fuzz", folder, "thread")
    start = time.perf_counter()
    found = subprocess.run([folder / "threads"], env={**os.environ, "TSAN_OPTIONS": "halt_on_error=1"})
    failures = (f"threads ended with {found.returncode}",) if found.returncode else ()
    return Row("callers at once, data races", 1, 0, 1 - len(failures), 0, failures, time.perf_counter() - start)


def main() -> None:
    """Builds, runs, prints the table; exit code 1 where anything failed."""
    start = time.perf_counter()
    rows = sanitize()
    print(f"\n{table(rows)}\n\n{time.perf_counter() - start:.0f} s with building")
    sys.exit(any(row.failures or row.interrupted for row in rows))


if __name__ == "__main__":
    main()
