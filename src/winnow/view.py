"""One layer of one sequence at the moment of compression, as scorers, stores, cache and diagnostics share it."""

from __future__ import annotations

from enum import Flag, auto
from typing import NamedTuple, Protocol

import torch
from torch import Tensor


class Extra(Flag):
    """Things that a scorer may ask for besides queries, keys and values; nobody pays for what no one asked for."""

    NONE = 0
    COVERAGE = auto()
    ROTATION = auto()
    OUTPUT_PROJECTION = auto()
    REPLAY = auto()


class Rotation(Protocol):
    """The rotary position embedding of one layer; the identity where the layer has none."""

    def inverse(self, queries: Tensor, first: int) -> Tensor:
        """Queries [Hq, n, D] at positions first … first + n - 1 as they were before their rotation."""

    def mean(self, first: int, count: int) -> Tensor:
        """[D, D]: mean of the rotation matrices of `count` positions from `first` on; rotates q as R·q."""

    def pair_sizes(self, states: Tensor) -> Tensor:
        """[..., F] fp32: the length of every pair of channels of states [..., D] that turns together.

        Channels that do not turn stand alone. No rotation changes these lengths.
        """


class QueryMoments(NamedTuple):
    """The queries of a text so far in a few numbers per query head, in fp32; they carry on in long generations."""

    number: int
    """Queries that were counted: those of the tokens after the sinks."""
    mean: Tensor
    """[Hq, D] μ of the queries before their rotation."""
    scatter: Tensor | None = None
    """[Hq, D, D] Σ (q - μ)(q - μ)ᵀ, where somebody wants it; over `number` it is the covariance."""
    sizes: Tensor | None = None
    """[Hq, F] mean of `Rotation.pair_sizes`, where somebody wants it."""

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors."""
        return sum(part.nbytes for part in (self.mean, self.scatter, self.sizes) if part is not None)


class Latents(NamedTuple):
    """Cached numbers of heads that share one latent per token (multi-head latent attention)."""

    keys: Tensor
    """[1, N, C] latents, of which each head makes its keys and values by matrices of its own."""
    values: Tensor
    """[1, N, Dr] the rotated part of the keys, the same in all heads."""


def last_queries(queries: Tensor, count: int) -> Tensor:
    """The last `count` of queries [Hq, n, D], or all of fewer."""
    return queries[:, max(0, queries.shape[1] - count) :]


class LayerView(NamedTuple):
    """One sequence in one layer at the moment of compression (no padding, no batch axis).

    Where a long generation is compressed again (`cache/fold.py`), the N columns of a head are what it still holds: the
    slots it kept, then the tokens that came since. Heads that kept fewer slots than others have absent columns in
    between, so that first tokens come first and the window last in all of them.
    """

    layer: int
    """Index among the compressed layers of the model, from 0."""
    layers: int
    """Number of compressed layers of the model."""
    queries: Tensor
    """[Hq, n, D] queries of the *last* n tokens after RoPE. A scorer's view has n = min(N, scorer.queries_needed(N)),
    a store's as many as the store asks for, or more."""
    keys: Tensor
    """[H, N, D] keys after RoPE."""
    values: Tensor
    """[H, N, Dv] values."""
    scaling: float
    """Factor on q·k before the softmax."""
    softcap: float | None = None
    """Logits are softcap·tanh(logit/softcap) where the model does so."""
    sinks: Tensor | None = None
    """[Hq] the model's own sinks: extra logits in the softmax denominator. A method's `sinks` are first tokens."""
    coverage: Tensor | None = None
    """[N] int32, in how many earlier layers any head kept each token; [H, N] where columns are different tokens.
    Only for scorers with Extra.COVERAGE."""
    rotation: Rotation | None = None
    """Rotation of the queries. Only for scorers with Extra.ROTATION."""
    output_projection: Tensor | None = None
    """[Hq, Dv, E]: head h adds its attention output [Dv] times matrix h. Only with Extra.OUTPUT_PROJECTION."""
    absent: Tensor | None = None
    """[H, N] bool, the columns that are no token of a head; None: every head holds N tokens. Keys and values are zero
    there. Scorers may return anything for them but NaN: nobody selects them."""
    positions: Tensor | None = None
    """[H, N] int64, which token of the sequence each column is, -1 where absent; None: column t is token t."""
    carried: Tensor | None = None
    """[H, M] fp32, `Ranking.carried` of the first M columns when they were kept, 0 where absent; the other N - M tokens
    came since. Only for scorers that accumulate, and None for a prompt."""
    moments: QueryMoments | None = None
    """`Ranking.moments` of the last time that this sequence was compressed. As `carried`."""
    replayed: Tensor | None = None
    """[H, N] fp32, what a replay of the prompt found each token to be worth. Only for scorers with Extra.REPLAY."""
    paid: Tensor | None = None
    """[H, N] fp32, the attention that all queries of the prompt together paid every token, the mean over the query
    group. Only for scorers with `sums_attention`, and only where it was summed up while the model attended; where it
    is None, `queries` are all that it takes."""
    latents: Latents | None = None
    """Cached numbers where heads share latents; keys and values are then those that the H heads make of them."""

    @property
    def tokens(self) -> int:
        """Tokens of the sequence so far, held or not."""
        return self.keys.shape[1] if self.positions is None else int(self.positions[0, -1]) + 1

    @property
    def stored(self) -> LayerView:
        """The view of what is cached: of one head, that all share, where there are latents."""
        if self.latents is None:
            return self
        return self._replace(keys=self.latents.keys, values=self.latents.values, latents=None)

    @property
    def counts(self) -> Tensor:
        """[H] int64 on the CPU: tokens that every head holds."""
        heads, length, _ = self.keys.shape
        if self.absent is None:
            return torch.full((heads,), length, device="cpu")
        return length - self.absent.sum(dim=1).cpu()


class ReplayView(NamedTuple):
    """One layer of one sequence while the model reads a chunk of its prompt once more, behind the whole of it."""

    layer: LayerView
    """First s tokens of the prompt, the C tokens of the chunk and the n that are read now, as if they were all:
    queries [Hq, n, D], keys [H, s + C + n, D] and values [H, s + C + n, Dv]."""
    first: int
    """s, where the chunk begins among those."""
    size: int
    """C, tokens of the chunk."""
    hidden_norms: Tensor | None = None
    """[n] fp32, norms of the hidden states that the layer's attention is given. Only where a scorer asks for them."""


class WindowAttention(NamedTuple):
    """Attention that the last queries of a layer pay to the tokens before them, in sums over those queries.

    Probabilities are of all keys that a query sees, so they sum to less than 1 over the tokens before the window.
    """

    rows: int
    """w, how many queries there are."""
    mass: Tensor
    """[Hq, N - w] fp32, Σ a over the queries."""
    squares: Tensor
    """[Hq, N - w] fp32, Σ a² over the queries."""
    entropy: Tensor
    """[Hq] fp32, Σ -a·ln a over the queries and the tokens."""
