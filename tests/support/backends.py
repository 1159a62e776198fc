"""One sequence under one method, attended to and packed by each of the kernels there are."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from random import Random
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor

import winnow
from support.families import prompt
from support.folding import run
from support.packed_caches import HEADS, LAYERS
from support.packed_slots import assert_same_tensors
from support.ready import BUDGETED, ready
from winnow.cache import attention
from winnow.cache.fold import check_foldable
from winnow.cache.layer import CompressedLayer
from winnow.cache.paid import PaidAttention
from winnow.composition.method import Method
from winnow.errors import MethodError
from winnow.kernels import native
from winnow.score import h2o

REFERENCE = "reference"
CLOSE = {torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 6e-2}
"""Largest difference of logits, as a share of the token's largest; rounding alone gives a tenth of it in fp32."""

EVICTIONS = [*BUDGETED, "full", "h2o+ada", "knorm+raba", "snapkv+critical+cokv"]
CHANNELS = [
    "",
    "spark(0.5)",
    "spark(0.8, values=0.5)",
    "spark(0.5, sign=query, norm=mean)",
    "spark(0.3, sign=none, recent=pruned)",
    "spark(0.5, recovery=gaussian)",
    "spark(0.4, recovery=exponential, sign=none, values=0.3)",
    "spark(0.4, recovery=gaussian-printed, norm=group-mean)",
    "spark(0.5, recovery=constant, sign=query)",
    "spark(0.6, recovery=none, saliency=squared)",
    "spark-g(5, by=segments)",
    "spark-p(0.9)",
    "spark-g(4)",
    "think(0.5)",
]
BITS = ["", "bits(8)", "bits(4)", "bits(2)", "bits(8, 4)", "bits(4, 2)", "mixedbits(5)"]
GROUPED = ["kivi(8)", "kivi(4)", "think(0.5)+kivi(2)"]
TURNED = ["bits(4, rotate=true)", "bits(k=8, v=4, center=true)", "mixedbits(5, rotate=true)"]
TURNED += ["bits(4, rotate=true, center=true, smooth=true)"]
STORES = ["+".join(filter(None, (channels, bits))) for channels in CHANNELS for bits in BITS] + GROUPED + TURNED


@contextmanager
def served_by(kernels: str) -> Iterator[None]:
    """Within, an instruction set of the native library serves, or the torch reference."""
    if kernels == REFERENCE:
        with patch.object(native, "library", lambda: None):
            yield
        return
    used = native.isa()
    native.select_isa(kernels)
    try:
        yield
    finally:
        native.select_isa(used)


def method_of(eviction: str, store: str, budget: int) -> Method:
    """A composition for `support.packed_caches.made`, with random head scores where it needs some."""
    return ready("+".join(filter(None, (eviction, store))), budget, (LAYERS, HEADS))


def folds(method: Method, every: int) -> bool:
    """True if the method can compress again during generation."""
    try:
        check_foldable(method, every)
    except MethodError:
        return False
    return True


class Case(NamedTuple):
    """A sequence, and the method that it is compressed by."""

    method: Method
    every: int | None
    """`fold_every`"""
    ids: Tensor
    """[1, N]"""
    chunks: tuple[int, ...]
    """Tokens that arrive together; the first are the prompt."""


def random_case(rng: Random, stores: Sequence[str] = STORES, length: int = 110, later: int = 14) -> Case:
    """Any composition with one of some stores, folding wherever it can, but for one time in four."""
    method = method_of(rng.choice(EVICTIONS), rng.choice(stores), rng.randint(16, 60))
    every = rng.randint(1, 8)
    chunks = [rng.randint(1, length)]
    while sum(chunks[1:]) < later:
        # As many tokens again as the prompt had are refused: they look like its next part.
        chunks.append(rng.choice([size for size in (1, 1, 1, 2, 3, 7) if size == 1 or chunks != [size]]))
    ids = prompt(length=sum(chunks), seed=rng.randrange(1 << 30))
    return Case(method, every if rng.random() < 0.75 and folds(method, every) else None, ids, tuple(chunks))


def assert_steps_agree(model: Any, case: Case, kernels: str) -> None:
    """Every chunk once by some kernels and once by the reference, from the same state of the cache.

    Logits differ by rounding. Everything stored is the same to the bit where it is made of the same numbers: a turn is
    folded in the pass that brings it, so the reference is given the other's attention there.
    """
    cache = winnow.CompressedCache(model, case.method, fold_every=case.every)
    for chunk in case.ids.split(case.chunks, dim=1):
        alone, fork = copy.deepcopy(cache), copy.deepcopy(cache)
        with served_by(kernels), attention_noted() as attended:
            found = run(model, cache, chunk, [chunk.shape[1]])
        with served_by(REFERENCE):
            expected = run(model, alone, chunk, [chunk.shape[1]])
            with attention_given(attended, CLOSE[model.dtype]):
                run(model, fork, chunk, [chunk.shape[1]])
        for one, other in zip(cache.compressed_layers(), fork.compressed_layers(), strict=True):
            assert_same_tensors(one.prefixes[0], other.prefixes[0])
        assert error(found, expected) < CLOSE[model.dtype]


ATTENTION = (
    (attention, "_over_tail"),
    (attention, "dense_attention"),
    (attention, "padded_attention"),
    (attention, "paid_attention"),
    (h2o, "attention_paid"),
)
"""Functions that give attention over compressed layers and prompts, or what a prompt's or a fold's queries paid."""
NOTED = (*ATTENTION, (CompressedLayer, "attend_token"))
"""These, and the shorter way of tokens that come one by one, which a fork goes only from its second token on."""


@contextmanager
def attention_noted() -> Iterator[list[Any]]:
    """Within, all attention is noted, in order."""
    noted: list[Any] = []

    def noting(attend: Callable[..., Any]) -> Callable[..., Any]:
        def attend_and_note(*arguments: Any) -> Any:
            found = attend(*arguments)
            if found is not None:
                noted.append(found)
            return copy.deepcopy(found)

        return attend_and_note

    with ExitStack() as patches:
        for module, name in NOTED:
            patches.enter_context(patch.object(module, name, noting(getattr(module, name))))
        yield noted


@contextmanager
def attention_given(noted: Sequence[Any], close: float) -> Iterator[None]:
    """Within, attention is what was noted; its own may differ from that by rounding."""
    left = list(noted)

    def giving(attend: Callable[..., Any]) -> Callable[..., Any]:
        def attend_and_compare(*arguments: Any) -> Any:
            own, given = attend(*arguments), left.pop(0)
            for one, other in zip(_tensors(own), _tensors(given), strict=True):
                assert error(one.flatten(2), other.flatten(2)) < close
            return given

        return attend_and_compare

    with ExitStack() as patches:
        for module, name in ATTENTION:
            patches.enter_context(patch.object(module, name, giving(getattr(module, name))))
        yield
    assert not left


def _tensors(attended: Any) -> tuple[Tensor, ...]:
    """[.., N, channels] each: attention, or what was paid, as one row."""
    if isinstance(attended, PaidAttention):
        return attended.output, attended.paid[:, None]
    return (attended if attended.dim() == 4 else attended[None],)


def strays(model: Any, case: Case, kernels: str) -> bool:
    """True if a sequence ends elsewhere by some kernels than by the reference, each going on with its own results."""
    caches, logits = [], []
    for each in (kernels, REFERENCE):
        cache = winnow.CompressedCache(model, case.method, fold_every=case.every)
        with served_by(each):
            logits.append(run(model, cache, case.ids, case.chunks))
        caches.append(cache)
    kept = [[head.tolist() for layer in range(LAYERS) for head in cache.kept(layer)] for cache in caches]
    return kept[0] != kept[1] or error(*logits) > CLOSE[model.dtype]


def error(found: Tensor, expected: Tensor) -> float:
    """The largest difference of logits [R, N, V], as a share of the largest logit of the same token."""
    errors = (found - expected).abs().amax(-1) / expected.abs().amax(-1)
    return float(errors.max())
