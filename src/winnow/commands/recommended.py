"""Models to begin with: shapes from their published configurations, and what follows from them.

They stand in models.json, each as at `Shape.source`. Sizes are computed, so that there is nothing to keep up to date.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

MODELS_PATH = Path(__file__).with_name("models.json")

ITEM = 2
"""Bytes of a number in bf16."""
MEMORIES = tuple(gib << 30 for gib in (4, 8, 16, 32, 64))
WEIGHTS_SHARE = 0.4
"""Part of a memory that weights may take: libraries, activations and the cache need the rest. A rule of thumb."""


@dataclass(frozen=True)
class Shape:
    """A model of Llama's kind, by the sizes in its configuration."""

    name: str
    """On the Hugging Face hub."""
    model_type: str
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    mlp: int
    vocabulary: int
    tied: bool
    """True if the embeddings are also the output layer."""
    context: int
    """Tokens at most, of prompt and answer."""
    good_for: str

    @property
    def source(self) -> str:
        """The address of its configuration."""
        return f"https://huggingface.co/{self.name}/blob/main/config.json"

    @property
    def parameters(self) -> int:
        """Numbers among its weights."""
        wide, narrow = self.heads * self.head_dim, self.kv_heads * self.head_dim
        attention = 2 * self.hidden * (wide + narrow)
        if self.model_type == "qwen2":
            attention += wide + 2 * narrow  # biases of queries, keys and values
        if self.model_type == "qwen3":
            attention += 2 * self.head_dim  # norms of queries and keys
        layer = attention + 3 * self.hidden * self.mlp + 2 * self.hidden
        return self.layers * layer + self.hidden + self.hidden * self.vocabulary * (1 if self.tied else 2)

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights in bf16."""
        return ITEM * self.parameters

    @property
    def cache_bytes_per_token(self) -> int:
        """Bytes of the full KV cache in bf16."""
        return ITEM * 2 * self.layers * self.kv_heads * self.head_dim

    @property
    def memory(self) -> int:
        """The smallest usual memory that it is recommended for, in bytes."""
        return next((size for size in MEMORIES if self.weight_bytes <= WEIGHTS_SHARE * size), MEMORIES[-1])

    def as_dict(self) -> dict[str, Any]:
        """Shape and sizes as JSON values."""
        sizes = ("parameters", "weight_bytes", "cache_bytes_per_token", "memory", "source")
        return asdict(self) | {name: getattr(self, name) for name in sizes}


def recommended() -> list[Shape]:
    """All of them, the smallest first."""
    return [Shape(**entry) for entry in json.loads(MODELS_PATH.read_text(encoding="utf-8"))]
