"""OpenVINO GenAI's caches, whole and evicted, each in a process of its own."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from contenders import Answering, PeerError, Rival
from measured import Engine

PROGRAM = Path(__file__).parent / "genai_turns.py"
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
class GenaiRival(Rival):
    """A cache of OpenVINO GenAI, on a model."""

    model: Path
    kind: GenaiCache
    depths: Sequence[int]
    """Depths of the race, ascending."""
    threads: int
    """With which it reads its prompt."""
    steps: int

    @property
    def engine(self) -> Engine:
        return "OpenVINO"

    @property
    def cache(self) -> str:
        return self.kind.name

    def cache_bytes(self, depth: int) -> int:
        """0: what it holds is not told."""
        return 0

    def prompt(self, depth: int) -> float:
        return self.answering.ask("prompt", self.threads, depth)[0]

    def token(self, depth: int, threads: int, steps: int) -> float:
        return self.answering.ask("tokens", depth, threads, steps)[0]

    @cached_property
    def answering(self) -> Answering:
        share = () if self.kind.percent is None else ("--percent", str(self.kind.percent))
        room = ("--room", str(sum(self.depths) + len(self.depths) * (self.steps + 2)))
        command = [sys.executable, str(PROGRAM), str(self.model), "--precision", self.kind.precision, *room, *share]
        return Answering(command, "OpenVINO GenAI")


def check_genai() -> None:
    """Raises PeerError where the packages are not installed."""
    if missing := [name for name in PACKAGES if importlib.util.find_spec(name) is None]:
        raise PeerError(f"--openvino needs {', '.join(missing)}: pip install openvino-genai, or leave it out.")
