"""Facts in the header of a context: the schema is these dataclasses, read by `winnow.typed`."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import date
from typing import Annotated, Any, Literal

import torch
import transformers

from winnow.cache.fingerprint import ModelFingerprint
from winnow.kernels.formats.serialize import Fact
from winnow.typed import Between, Sized
from winnow.version import __version__

Count = Annotated[int, Between(0, 1 << 40)]
"""Tokens of a sequence."""
Dimension = Annotated[int, Between(1, 1 << 20)]
"""Heads of a layer, channels of a head."""


_ROWS = 1 << 16
"""Sequences of a batch, at most."""

Kind = Literal["full", "latent", "full+linear", "sliding", "linear", "none"]
"""Kinds of layers."""


@dataclass(frozen=True)
class MethodFacts:
    """The method by name."""

    name: str
    budget: str
    takes_budget: bool
    head_scores: list[dict[str, Any]]
    """Facts about the tables that it used."""


@dataclass(frozen=True)
class PrefixFacts:
    """One prefix; its tensors lie under `layers.I.prefixes.P`."""

    length: Count
    """Tokens that it was made from."""
    format: str
    facts: dict[str, Fact]


@dataclass(frozen=True)
class FullFacts:
    """A layer of full attention."""

    seen: Count
    heads: Dimension
    key_dim: Dimension
    value_dim: Dimension
    dtype: str
    rows: Annotated[list[Count | None], Sized(most=_ROWS)]
    """The prefix of each row; none for a row of nothing but padding."""
    prefixes: Annotated[list[PrefixFacts], Sized(most=_ROWS)]


@dataclass(frozen=True)
class SlidingFacts:
    """A sliding or chunked layer."""

    seen: Count


@dataclass(frozen=True)
class LinearFacts:
    """A linear or convolution layer, of which all is tensors."""


@dataclass(frozen=True)
class LayerFacts:
    """One layer, by the parts that its kind has."""

    kind: Kind
    full: FullFacts | None = None
    sliding: SlidingFacts | None = None
    linear: LinearFacts | None = None


@dataclass(frozen=True)
class MadeFacts:
    """The day on which a context was written first, and the software that compressed it."""

    date: str
    """As in ISO 8601: "2026-11-27"."""
    winnow: str
    torch: str
    transformers: str

    @classmethod
    def now(cls) -> MadeFacts:
        """Those of a context that this process compressed."""
        return cls(date.today().isoformat(), __version__, str(torch.__version__), transformers.__version__)


@dataclass(frozen=True)
class ContextFacts:
    """A whole context."""

    version: int
    model: ModelFingerprint
    tokenizer: str | None
    method: MethodFacts
    stats: dict[str, Any]
    """`CompressedCache.stats`, as of when it was saved."""
    tokens: Count
    """N, tokens of the prompt, padding included."""
    layers: Annotated[list[LayerFacts], Sized(most=1 << 12)]
    prompt: dict[str, Any] = field(default_factory=dict)
    """Words around the document, for whoever asks it; nothing where they are the usual ones."""
    made: MadeFacts | None = None
    """None in files of earlier versions, which did not tell."""
