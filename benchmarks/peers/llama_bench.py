"""llama-bench, llama.cpp's own benchmark: built from the sources that a Python package ships, run, and read."""

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

from measured import Engine
from rivals import PeerError, Printed, run_benchmark

PACKAGE, VERSION = "llama-cpp-python", "0.3.36"
COMPILERS = ("c++", "g++", "clang++")
# For this processor, with nothing but what the program needs.
BUILD = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DGGML_NATIVE=ON",
    "-DBUILD_SHARED_LIBS=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_SERVER=OFF",
    "-DLLAMA_BUILD_APP=OFF",
)
WITHOUT_AMX = ("-DCMAKE_C_FLAGS=-mno-amx-int8", "-DCMAKE_CXX_FLAGS=-mno-amx-int8")
"""For processors with AMX: there this version of llama.cpp loads tiles that end in a segmentation fault (its issue
20824), and serves no prompt at all."""


@dataclass(frozen=True)
class LlamaCache:
    """A kind of cache that llama.cpp has."""

    type: str
    """The type of keys and of values, in its own words."""
    block: int
    """Numbers that are written together."""
    block_bytes: int
    flash: bool
    """True with its flash attention, without which quantized values cannot be read."""

    @property
    def name(self) -> str:
        """The name in tables."""
        return self.type if self.flash else f"{self.type}, no flash attention"


CACHES = (
    LlamaCache("f16", 1, 2, flash=True),
    LlamaCache("f16", 1, 2, flash=False),
    LlamaCache("q8_0", 32, 34, flash=True),
    LlamaCache("q4_0", 32, 18, flash=True),
)


@dataclass(frozen=True)
class LlamaRival:
    """A cache of llama.cpp, in the program with a model."""

    program: Path
    model: Path
    cache: LlamaCache

    @property
    def engine(self) -> Engine:
        return "llama.cpp"

    @property
    def name(self) -> str:
        return self.cache.name

    def nbytes(self, numbers: int) -> int:
        """Bytes of keys and values, without the room that is left for more."""
        return numbers // self.cache.block * self.cache.block_bytes

    def tokens(self, depth: int, threads: Sequence[int], steps: int, repeats: int) -> list[Printed]:
        """Times of `steps` tokens after `depth` others, for every number of threads. Raises PeerError.

        All threads read the prompt that the tests share, since the largest number of them is tested first.
        """
        first_most = ",".join(map(str, sorted(threads, reverse=True)))
        return self._run("-p", "0", "-n", str(steps), "-d", str(depth), "-t", first_most, "-r", str(repeats))

    def prompt(self, tokens: int, threads: int) -> Printed:
        """The time of one prompt. Raises PeerError."""
        return self._run("-p", str(tokens), "-n", "0", "-t", str(threads), "-r", "1", "--no-warmup")[0]

    def _run(self, *test: str) -> list[Printed]:
        kind = ("-ctk", self.cache.type, "-ctv", self.cache.type, "-fa", "on" if self.cache.flash else "off")
        return run_benchmark([str(self.program), "-m", str(self.model), "-o", "json", *kind, *test], "llama-bench")


def built(folder: Path) -> Path:
    """The program, which is fetched and built in a folder where it is not there yet: some minutes, and 400 MB.

    Raises:
        PeerError: no CMake or C++ compiler, no network, or a build that failed.
    """
    program = folder / "llama.cpp" / "bin" / "llama-bench"
    if program.exists():
        return program
    cmake = _tool("cmake", ["cmake"], "pip install cmake")
    _tool("C++ compiler", [os.environ.get("CXX") or COMPILERS[0], *COMPILERS], "apt-get install g++")
    folder.mkdir(parents=True, exist_ok=True)
    source, into = _source(folder), folder / "llama.cpp"
    _step("configuring llama.cpp", cmake, "-S", source, "-B", into, *BUILD, *(WITHOUT_AMX if _has_amx() else ()))
    parallel = str(os.cpu_count() or 1)
    _step("building llama.cpp", cmake, "--build", into, "--target", "llama-bench", "--parallel", parallel)
    return program


def _has_amx() -> bool:
    """True where Linux tells that the processor multiplies tiles of bytes."""
    info = Path("/proc/cpuinfo")
    return info.exists() and " amx_int8" in info.read_text(encoding="utf-8")


def _tool(title: str, names: Sequence[str], remedy: str) -> str:
    """The path of the first that there is; those that came with this Python before others."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    found = next((found for name in names if (found := shutil.which(name, path=path))), None)
    if found is None:
        raise PeerError(f"Building llama.cpp needs a {title}: {remedy}, or name a program with --llama-bench.")
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
