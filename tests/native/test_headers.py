"""The headers of the native kernels stand alone: each compiles without another before it."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

NATIVE = Path(__file__).parents[2] / "native"
# Programs that the development extra installs beside Python come first.
PROGRAMS = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
CMAKE = shutil.which("cmake", path=PROGRAMS)


def cmake_version() -> tuple[int, ...]:
    """(0,) without CMake."""
    if CMAKE is None:
        return (0,)
    shown = subprocess.run([CMAKE, "--version"], check=False, capture_output=True, text=True).stdout
    found = re.search(r"(\d+)\.(\d+)", shown)
    return tuple(map(int, found.groups())) if found else (0,)


@pytest.mark.skipif(cmake_version() < (3, 24), reason="header sets are compiled by CMake 3.24")
@pytest.mark.skipif(not shutil.which(os.environ.get("CXX", "c++")), reason="no C++ compiler")
@pytest.mark.parametrize("sets", ["once", pytest.param("all", marks=pytest.mark.slow)])
def test_every_header_compiles_alone(tmp_path: Path, sets: str) -> None:
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    options = [f"-DWINNOW_VERIFY_HEADERS={sets}", "-DCMAKE_BUILD_TYPE=None"]
    assert CMAKE is not None
    subprocess.run([CMAKE, "-S", NATIVE, "-B", tmp_path, *generator, *options], check=True, capture_output=True)
    target = ["--target", "all_verify_interface_header_sets", "--parallel", "2"]
    built = subprocess.run([CMAKE, "--build", tmp_path, *target], check=False, capture_output=True, text=True)
    assert not built.returncode, built.stdout
    compiled = {source.stem for source in tmp_path.rglob("*.hpp.cxx")}
    headers = list(NATIVE.rglob("*.hpp"))
    if platform.machine() != "x86_64":
        headers = [path for path in headers if not re.search("/(avx|amx)", path.as_posix())]
    assert compiled >= {header.name for header in headers}
