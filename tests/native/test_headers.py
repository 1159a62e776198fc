"""The headers of the native kernels stand alone: each compiles without another before it."""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

from support.turns import one_in

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


needs_a_compiler = pytest.mark.skipif(not shutil.which(os.environ.get("CXX", "c++")), reason="no C++ compiler")
needs_header_sets = pytest.mark.skipif(cmake_version() < (3, 24), reason="header sets are compiled by CMake 3.24")


def configured(folder: Path, *options: str) -> None:
    """CMake's build of the headers in a folder."""
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    assert CMAKE is not None
    command: list[str | Path] = [CMAKE, "-S", NATIVE, "-B", folder, *generator, "-DCMAKE_BUILD_TYPE=None", *options]
    subprocess.run(command, check=True, capture_output=True)


def headers_here() -> set[Path]:
    """Headers that compilers for this machine understand."""
    headers = set(NATIVE.rglob("*.hpp"))
    if platform.machine() == "x86_64":
        return headers
    return {path for path in headers if not re.search("/(avx|amx)", path.as_posix())}


def leading_includes(path: Path) -> Iterator[str]:
    """Includes of a header, in <> or "", up to the first line that is anything else, a condition for example."""
    for line in path.read_text(encoding="utf-8").splitlines():
        text = line.partition("//")[0].strip()
        if found := re.fullmatch(r"#include (<.+>|\".+\")", text):
            yield found[1]
        elif text not in ("", "#pragma once"):
            return


@cache
def brings_intrinsics(path: Path) -> bool:
    """True if a header includes <immintrin.h>, itself or by what it includes, before any code of its own."""
    return any(
        name == "<immintrin.h>" or (name[0] == '"' and brings_intrinsics(NATIVE / name[1:-1]))
        for name in leading_includes(path)
    )


class Compilation(NamedTuple):
    """A header that is compiled alone, and how."""

    header: Path
    """Without what CMake adds to its name."""
    options: tuple[str, ...]
    """The compiler, and what it is told for the header's instruction set."""
    source: str
    """A file that includes the header and nothing else."""


def compilations(build: Path) -> Iterator[Compilation]:
    """Headers of all instruction sets, each as CMake would compile it."""
    for entry in json.loads((build / "compile_commands.json").read_text(encoding="utf-8")):
        found = re.search(r"headers_\w+_verify_interface_header_sets/(.+)\.cxx$", entry["file"])
        if found:
            *options, to, _, of, source = shlex.split(entry["command"])
            assert (to, of) == ("-o", "-c")
            yield Compilation(NATIVE / found[1], tuple(options), source)


class Intrinsics:
    """<immintrin.h>, most of the work of compiling a header, compiled once for each set of options."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._compiled: dict[tuple[str, ...], Path] = {}

    def __call__(self, options: tuple[str, ...]) -> Path:
        """A header that stands for it, which the compiler has compiled already."""
        if options not in self._compiled:
            header = self._folder / f"intrinsics_{len(self._compiled)}.hpp"
            header.write_text("#include <immintrin.h>\n", encoding="utf-8")
            alone = [option for before, option in pairwise(("", *options)) if "-x" not in (before, option)]
            subprocess.run([*alone, "-x", "c++-header", header, "-o", f"{header}.gch"], check=True, capture_output=True)
            self._compiled[options] = header
        return self._compiled[options]


def complaints(compilation: Compilation, intrinsics: Intrinsics) -> str:
    """The compiler's words about a header alone, "" if there are none.

    A header that includes <immintrin.h> before any code of its own is given it in advance: nothing is hidden by that,
    since what it includes before is compiled alone as well.
    """
    command: list[str | Path] = [*compilation.options, "-fsyntax-only", compilation.source]
    if brings_intrinsics(compilation.header):
        command[-1:-1] = ["-include", intrinsics(compilation.options)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    return done.stderr or f"The compiler ended with {done.returncode}." if done.returncode else ""


@needs_header_sets
@needs_a_compiler
@pytest.mark.parametrize("part", one_in(3, range(3)))
def test_every_header_is_understood_alone(part: int, tmp_path: Path) -> None:
    """Each with the first of its instruction sets, and not translated any further."""
    configured(tmp_path, "-DWINNOW_VERIFY_HEADERS=once", "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON")
    first: dict[Path, Compilation] = {}
    for compilation in compilations(tmp_path):
        first.setdefault(compilation.header, compilation)
    assert first.keys() >= headers_here()
    intrinsics = Intrinsics(tmp_path)
    said = {header.name: complaints(first[header], intrinsics) for header in sorted(first)[part::3]}
    assert not any(said.values()), "\n".join(said.values())


@needs_header_sets
@needs_a_compiler
@pytest.mark.slow
@pytest.mark.parametrize("sets", ["once", "all"])
def test_every_header_compiles_alone(tmp_path: Path, sets: str) -> None:
    configured(tmp_path, f"-DWINNOW_VERIFY_HEADERS={sets}")
    target = ["--target", "all_verify_interface_header_sets", "--parallel", "2"]
    assert CMAKE is not None
    built = subprocess.run([CMAKE, "--build", tmp_path, *target], check=False, capture_output=True, text=True)
    assert not built.returncode, built.stdout
    compiled = {source.stem for source in tmp_path.rglob("*.hpp.cxx")}
    assert compiled >= {header.name for header in headers_here()}
