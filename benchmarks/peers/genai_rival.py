"""OpenVINO GenAI's caches, whole and evicted, each test in a process of its own."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from measured import Engine
from rivals import PeerError, Printed, run_benchmark

PROGRAM = Path(__file__).parent / "genai_bench.py"
PACKAGES = ("openvino", "openvino_genai", "openvino_tokenizers")


@dataclass(frozen=True)
class GenaiCache:
    """A kind of cache that OpenVINO GenAI has."""

    precision: str
    """The type of keys and of values."""
    percent: int | None = None
    """Share of the prompt that its eviction of blocks leaves; None: no eviction."""

    @property
    def name(self) -> str:
        """The name in tables."""
        return self.precision if self.percent is None else f"{self.precision} @ {self.percent}%"


GENAI_CACHES = (GenaiCache("f16"), GenaiCache("u8"), GenaiCache("u4"), GenaiCache("u8", 10))


@dataclass(frozen=True)
class GenaiRival:
    """A cache of OpenVINO GenAI, on a model."""

    model: Path
    cache: GenaiCache

    @property
    def engine(self) -> Engine:
        return "OpenVINO"

    @property
    def name(self) -> str:
        return self.cache.name

    def nbytes(self, numbers: int) -> int:
        """0: what it holds is not told."""
        return 0

    def tokens(self, depth: int, threads: Sequence[int], steps: int, repeats: int) -> list[Printed]:
        """Times of `steps` tokens after `depth` others, for every number of threads. Raises PeerError."""
        test = ("--depth", str(depth), "--steps", str(steps), "--repeats", str(repeats))
        return [found for count in threads for found in self._run("--threads", str(count), *test)]

    def prompt(self, tokens: int, threads: int) -> Printed:
        """The time of one prompt. Raises PeerError."""
        return self._run("--threads", str(threads), "--depth", str(tokens), "--steps", "0", "--repeats", "1")[0]

    def _run(self, *test: str) -> list[Printed]:
        share = () if self.cache.percent is None else ("--percent", str(self.cache.percent))
        command = [sys.executable, str(PROGRAM), str(self.model), "--precision", self.cache.precision, *share, *test]
        return run_benchmark(command, "OpenVINO GenAI")


def check_genai() -> None:
    """Raises PeerError where the packages are not installed."""
    if missing := [name for name in PACKAGES if importlib.util.find_spec(name) is None]:
        raise PeerError(f"--openvino needs {', '.join(missing)}: pip install openvino-genai, or leave it out.")
