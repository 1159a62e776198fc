"""llama.cpp's caches, timed by `llama-turns`, which is built with the sources that a Python package ships."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from contenders import Answering, Rival
from measured import Engine


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
