"""Decode steps by graphs beside ordinary ones: two equal models, one of which has graphs.

That one is on a GPU, or what stands in for it, or on the CPU as well.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from transformers import PreTrainedModel

from support import elsewhere
from support.device_plan import device_plans
from support.elsewhere import Elsewhere, moved_model, there
from support.families import build, prompt
from support.graphs import EmulatedGraph, graphed_gpu, refuse
from winnow import CompressedCache, GraphedDecoder
from winnow.cache.cuda_graph import CudaGraph
from winnow.cache.host_graph import HostGraph
from winnow.models.cache_argument import with_cache

ON_GPU = torch.cuda.is_available()
CAPTURE = CudaGraph if ON_GPU else EmulatedGraph
CLOSE = 2e-4
"""Absolute, on logits of a random model; on a GPU products are summed in other orders than on the CPU."""
PROMPT = 24


@dataclass(frozen=True)
class Place:
    """The device of one of two equal models."""

    model: PreTrainedModel
    to: Callable[[Tensor], Tensor]

    def run(self, cache: CompressedCache, ids: Tensor, **given: Tensor) -> Tensor:
        """Logits [R, V] of the tokens after ids [R, N], on the CPU."""
        moved = {name: self.to(value) for name, value in given.items()}
        with torch.no_grad():
            logits = self.model(self.to(ids), **with_cache(self.model, cache), **moved).logits
        return back(logits)[:, -1]


@dataclass(frozen=True)
class Places:
    """Both."""

    here: Place
    device: Place
    capture: Any
    """The kind of graphs that the other one has."""

    @property
    def rehearses(self) -> bool:
        """True where the second step is gone through as it is captured next, which a CPU need not."""
        return self.capture is not HostGraph

    def pair(self, method: str = "adakv(window=4) @ 12", rows: int = 1, length: int = PROMPT, **options: int) -> Pair:
        """Two caches after the same random prompt."""
        both = Pair(self, method, rows, **options)
        both.ordinary(prompt(rows, length))
        return both


class Pair:
    """A cache on the device, whose steps are graphed, and one of the same tokens on the CPU."""

    def __init__(self, places: Places, method: str, rows: int, **options: int) -> None:
        self.here, self.device, self.places = places.here, places.device, places
        self.expected = CompressedCache(self.here.model, method, **options)
        self.cache = CompressedCache(self.device.model, method, **options)
        self.token = torch.arange(rows)

    def graphed(self, **options: Any) -> GraphedDecoder:
        """A decoder of the cache."""
        self.decoder = GraphedDecoder(self.device.model, self.cache, capture=self.places.capture, **options)
        self.rehearsal = None if self.places.rehearses else 2
        return self.decoder

    def up_to_capture(self) -> None:
        """The steps of a new decoder before it captures one."""
        self.steps(2 if self.places.rehearses else 1)

    def steps(self, count: int, **given: Tensor) -> list[bool]:
        """Checks steps of graphs against ordinary ones; which of them were replayed.

        A second step of a decoder is told as not replayed, whether or not that one is rehearsed.
        """
        replayed = []
        for _ in range(count):
            self.token = (self.token * 7 + 5) % 90 + 2
            expected = self.here.run(self.expected, self.token[:, None], **given)
            given = {name: value + 1 for name, value in given.items()}
            found = self.decoder.step(self.device.to(self.token))
            torch.testing.assert_close(back(found), expected, rtol=0, atol=CLOSE)
            self.rehearsal = self.rehearsal and self.rehearsal - 1
            replayed.append(self.decoder._graph is not None and self.rehearsal != 0)
            self.rehearsal = self.rehearsal or None
        self.same()
        return replayed

    def ordinary(self, ids: Tensor, **given: Tensor) -> None:
        """Checks that both take tokens ids [R, N] in the ordinary way."""
        expected, found = self.here.run(self.expected, ids, **given), self.device.run(self.cache, ids, **given)
        torch.testing.assert_close(found, expected, rtol=0, atol=CLOSE)
        self.same()

    def each(self, change: Callable[[CompressedCache], Any]) -> None:
        """Changes both caches."""
        change(self.cache)
        change(self.expected)

    def same(self) -> None:
        """Checks that the caches hold the same tokens, as the host and the device know them."""
        for one, other in zip(self.cache.compressed_layers(), self.expected.compressed_layers(), strict=True):
            assert one.tail is not None
            assert other.tail is not None
            assert one.seen == other.seen
            assert one.tail.lengths.tolist() == other.tail.lengths.tolist() == back(one.tail.lengths_there).tolist()
            assert one.tail.longest == other.tail.longest
            for row in range(len(one.prefixes)):
                assert [head.tolist() for head in one.kept(row)] == [head.tolist() for head in other.kept(row)]
                close(one.tail.row(row), other.tail.row(row))
                if one.recent is not None and other.recent is not None:
                    assert one.recent.held(row) == other.recent.held(row)
                    close([one.recent.row(row)], [other.recent.row(row)])


def close(some: Any, others: Any) -> None:
    """Checks tensors of the device against those of the CPU."""
    for one, other in zip(some, others, strict=True):
        torch.testing.assert_close(back(one), other, rtol=0, atol=CLOSE)


def back(tensor: Tensor) -> Tensor:
    """The numbers on the CPU."""
    return tensor.here if isinstance(tensor, Elsewhere) else tensor.cpu()


@contextmanager
def places(kernels: bool) -> Iterator[Places]:
    """Within, two equal models; without a GPU the kernels are Triton's, interpreted, or a few operators of torch."""
    model = build("llama", num_hidden_layers=1 if kernels else 2)
    if ON_GPU:
        yield twins(model)
        return
    with graphed_gpu(), nullcontext() if kernels else device_plans():
        yield twins(model)


@contextmanager
def places_here() -> Iterator[Places]:
    """Two equal models, both on the CPU."""
    yield twins_here(build("llama", num_hidden_layers=2))


def twins_here(model: PreTrainedModel) -> Places:
    """A model, and an equal one on the CPU as well."""
    model.set_attn_implementation("winnow")
    here, other = (Place(each, lambda tensor: tensor) for each in (model, copy.deepcopy(model)))
    return Places(here, other, HostGraph)


def twins(model: PreTrainedModel) -> Places:
    """A model, and an equal one on the device; to be used within `places`."""
    model.set_attn_implementation("winnow")
    there_too = copy.deepcopy(model)
    device = Place(there_too.cuda(), Tensor.cuda) if ON_GPU else Place(moved_model(there_too), there)
    return Places(Place(model, lambda tensor: tensor), device, CAPTURE)


@contextmanager
def not_waiting() -> Iterator[None]:
    """Within, nothing may wait for the device, or send numbers there that the device then waits for."""
    if ON_GPU:
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")
        return
    with mock.patch.object(elsewhere, "_write", refuse):
        yield
