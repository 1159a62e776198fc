"""llama.cpp's caches, timed by `llama-turns`, which is built with the sources that a Python package ships."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from contenders import Answering, PeerError, Rival
from measured import Engine

PACKAGE, VERSION = "llama-cpp-python", "0.3.36"
PROJECT = Path(__file__).parent / "llama_turns"
COMPILERS = ("c++", "g++", "clang++")
# For this processor, with nothing but what the program needs.
BUILD = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DGGML_NATIVE=ON",
    "-DBUILD_SHARED_LIBS=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_BUILD_COMMON=OFF",
    "-DLLAMA_BUILD_TOOLS=OFF",
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
class LlamaRival(Rival):
    """A cache of llama.cpp, in a program of its own with a model."""

    program: Path
    model: Path
    kind: LlamaCache
    depths: Sequence[int]
    """Depths of the race, ascending, without 0."""
    threads: int
    """With which it reads its prompt."""
    steps: int
    """Tokens for which there is room beyond the last depth."""
    numbers: int
    """Keys and values of a token, in all layers."""

    @property
    def engine(self) -> Engine:
        return "llama.cpp"

    @property
    def cache(self) -> str:
        return self.kind.name

    def cache_bytes(self, depth: int) -> int:
        """Without the room that is left for more."""
        return self.numbers * depth // self.kind.block * self.kind.block_bytes

    def prompt(self, depth: int) -> float:
        return self._prompts[depth]

    def token(self, depth: int, threads: int, steps: int) -> float:
        _ = self._prompts  # which are read before anything follows them
        return self.answering.ask("tokens", depth, threads, steps)[0]

    @cached_property
    def answering(self) -> Answering:
        room = self.depths[-1] + self.steps + 1
        kind = (self.kind.type, str(int(self.kind.flash)))
        return Answering([str(self.program), str(self.model), str(room), *kind], "llama-turns")

    @cached_property
    def _prompts(self) -> dict[int, float]:
        """Milliseconds of the prompt by depth; it is read once."""
        return dict(zip(self.depths, self.answering.ask("prompt", self.threads, *self.depths), strict=True))


def built(folder: Path) -> Path:
    """The program, which is fetched and built in a folder where it is not there yet: some minutes, and 400 MB.

    Raises:
        PeerError: no CMake or C++ compiler, no network, or a build that failed.
    """
    program = folder / "llama_turns" / "bin" / "llama-turns"
    if program.exists():
        return program
    cmake = _tool("cmake", ["cmake"], "pip install cmake")
    _tool("C++ compiler", [os.environ.get("CXX") or COMPILERS[0], *COMPILERS], "apt-get install g++")
    folder.mkdir(parents=True, exist_ok=True)
    into = folder / "llama_turns"
    about = (f"-DLLAMA_CPP={_source(folder)}", *BUILD, *(WITHOUT_AMX if _has_amx() else ()))
    _step("configuring llama.cpp", cmake, "-S", PROJECT, "-B", into, *about)
    parallel = str(os.cpu_count() or 1)
    _step("building llama.cpp", cmake, "--build", into, "--target", "llama-turns", "--parallel", parallel)
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
        raise PeerError(f"Building llama.cpp needs a {title}: {remedy}, or name a program with --llama-turns.")
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
