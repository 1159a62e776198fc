"""Prompts whose layers are compressed one behind: the same caches, in the same order, and nothing left waiting.

Streams are stood in for, as there may be no GPU; `test_cuda.py` has these caches on one.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any
from unittest import mock
from weakref import ref

import pytest
import torch
from torch import Tensor

import winnow
from support.families import prompt
from support.small_caches import GREEDY, N, cache, made
from winnow import ModelError
from winnow.cache import overlap
from winnow.cache.compressor import LayerCompressor
from winnow.cache.layer import CompressedLayer
from winnow.cache.overlap import Overlap

pytestmark = pytest.mark.usefixtures("one_thread")


class Event:
    """An event of a device that has always done its work."""

    def record(self) -> None: ...
    def synchronize(self) -> None: ...


@contextmanager
def one_behind(*small: bool) -> Iterator[None]:
    """Within, prompts on the CPU are compressed as those on a GPU; of one that has large layers, which are `small`."""
    device = SimpleNamespace(Event=Event, device=lambda device: nullcontext())
    with (
        mock.patch.object(Overlap, "serves", return_value=True, side_effect=small or None),
        mock.patch.object(overlap, "_beside", return_value=nullcontext()),
        mock.patch.object(overlap.torch, "cuda", device),
    ):
        yield


def filled(model: Any, options: dict[str, Any], inputs: dict[str, Tensor]) -> winnow.CompressedCache:
    past = winnow.CompressedCache(model, **options)
    with torch.no_grad():
        model(**inputs, past_key_values=past)
    return past


def assert_same(found: winnow.CompressedCache, expected: winnow.CompressedCache) -> None:
    for mine, its in zip(found.compressed_layers(), expected.compressed_layers(), strict=True):
        assert mine.compressed
        assert not mine.waiting
        assert mine.whole is None
        assert [tensor.shape for tensor in mine.tensors()] == [tensor.shape for tensor in its.tensors()]
        for one, other in zip(mine.distinct_prefixes(), its.distinct_prefixes(), strict=True):
            assert all(map(torch.equal, one.tensors(), other.tensors()))
    assert found.stats().slots == expected.stats().slots
    assert found.stats().bytes == expected.stats().bytes


@pytest.mark.parametrize(
    "options",
    [
        {"method": "full"},
        {"method": "adakv @ 9"},
        {"method": "snapkv+cake @ 9"},
        {"method": "kvec(window=4, wide_window=8) @ 12"},
        {"method": "h2o @ 9"},
        {"method": "h2o+bits(8) @ 12", "fold_every": 4},
        {"method": "adakv+spark(0.5) @ 9", "fold_every": 4},
        {"method": "adakv+kivi(4) @ 36"},
        {"method": "expectedattention @ 9"},
    ],
    ids=lambda options: " ".join(str(each) for each in options.values()),
)
@pytest.mark.parametrize("padded", [False, True], ids=["", "padded"])
def test_caches_are_as_those_compressed_at_once(options: dict[str, Any], padded: bool) -> None:
    model, mask = made(), torch.ones(2, N, dtype=torch.int64)
    mask[0, : 7 if padded else 0] = 0
    inputs = {"input_ids": prompt(rows=2, length=N), "attention_mask": mask}
    expected = filled(model, options, inputs)
    with one_behind():
        found = filled(model, options, inputs)
    assert_same(found, expected)
    given = inputs | {"attention_mask": torch.cat([mask, torch.ones(2, 1, dtype=torch.int64)], dim=1)}
    given["input_ids"] = torch.cat([given["input_ids"], prompt(rows=2, length=1, seed=5)], dim=1)
    one, other = (model.generate(**given, past_key_values=past, **GREEDY) for past in (found, expected))
    assert torch.equal(one, other)


@pytest.mark.parametrize("family", ["gemma2", "gemma3n_text", "qwen3_next", "falcon_h1", "deepseek_v3"])
def test_layers_of_every_kind(family: str) -> None:
    model, inputs = made(family), {"input_ids": prompt(length=N)}
    expected = filled(model, {"method": "keydiff @ 9"}, inputs)
    with one_behind():
        assert_same(filled(model, {"method": "keydiff @ 9"}, inputs), expected)


@pytest.mark.parametrize("small", [(True, False, True), (False, True, False), (True, True, False)])
@pytest.mark.parametrize("method", ["adakv @ 9", "snapkv+cake @ 9"])
def test_a_large_layer_does_not_overtake_one_that_waits(method: str, small: tuple[bool, ...]) -> None:
    model, inputs = made(), {"input_ids": prompt(length=N)}
    expected = filled(model, {"method": method}, inputs)
    with one_behind(*small):
        assert_same(filled(model, {"method": method}, inputs), expected)


def test_a_prompt_in_chunks() -> None:
    model, ids = made(), prompt(length=N)
    expected = winnow.compress(model, ids, "h2o @ 9", chunk_size=16).cache()
    with one_behind():
        found = winnow.compress(model, ids, "h2o @ 9", chunk_size=16).cache()
    assert_same(found, expected)


def test_a_layer_waits_until_the_next_one_attends() -> None:
    model, log = made(), []
    finish, compress = CompressedLayer.finish_prompt, LayerCompressor.compress

    def finishing(layer: CompressedLayer, *given: Any) -> None:
        log.append(("attended", layer.index))
        finish(layer, *given)
        log.append(("left", layer.index))

    def compressing(compressor: LayerCompressor, *given: Any) -> Any:
        log.append(("compressed", compressor.index))
        return compress(compressor, *given)

    with (
        one_behind(),
        mock.patch.object(CompressedLayer, "finish_prompt", finishing),
        mock.patch.object(LayerCompressor, "compress", compressing),
    ):
        filled(model, {"method": "adakv @ 9"}, {"input_ids": prompt(length=N)})
    assert log == [
        ("attended", 0),
        ("left", 0),
        *(("attended", 1), ("compressed", 0), ("left", 1)),
        *(("attended", 2), ("compressed", 1), ("compressed", 2), ("left", 2)),
    ]


def test_no_more_than_the_last_queries_wait() -> None:
    """The model's own tensor has those of the whole prompt."""
    model, seen = made(), []
    add = Overlap.add

    def adding(self: Overlap, layer: CompressedLayer, *given: Any, **named: Any) -> None:
        seen.append(layer.arriving.nbytes())
        add(self, layer, *given, **named)

    with one_behind(), mock.patch.object(Overlap, "add", adding):
        filled(model, {"method": "snapkv(window=4) @ 9"}, {"input_ids": prompt(length=N)})
    config = model.config
    assert seen == [config.num_attention_heads * 4 * config.head_dim * 4 + N] * config.num_hidden_layers


def test_what_cannot_be_compressed_is_told_one_layer_late() -> None:
    model = made()
    model.model.layers[1].self_attn.k_proj.weight.data[0] = torch.nan
    with one_behind(), pytest.raises(ModelError, match=r"keys of layer 1 .*NaN"):
        filled(model, {"method": "adakv @ 9"}, {"input_ids": prompt(length=N)})


@pytest.mark.parametrize("layer", [0, 1, 2])
def test_a_cache_is_used_again_after_a_prompt_that_failed(layer: int) -> None:
    model, ids = made(), prompt(length=N)
    past = cache(model)
    expected = model.generate(ids, past_key_values=cache(model), **GREEDY)
    broken = model.model.layers[layer].mlp
    with one_behind():
        with (
            mock.patch.object(broken, "forward", side_effect=torch.OutOfMemoryError),
            torch.no_grad(),
            pytest.raises(torch.OutOfMemoryError),
        ):
            model(prompt(length=N + 3, seed=9), past_key_values=past)
        past.reset()
        assert torch.equal(model.generate(ids, past_key_values=past, **GREEDY), expected)


def test_what_was_doubted_of_a_prompt_that_failed_is_forgotten() -> None:
    model = made()
    past = cache(model)
    shared = past.compressed_layers()[0].compression.overlap
    broken = model.model.layers[2].mlp
    with one_behind(), torch.no_grad():
        with (
            mock.patch.object(broken, "forward", side_effect=torch.OutOfMemoryError),
            pytest.raises(torch.OutOfMemoryError),
        ):
            model(prompt(length=N), past_key_values=past)
        shared._doubts.add(torch.tensor(True), ModelError("of another prompt"))
        past.reset()
        model(prompt(length=N), past_key_values=past)
    assert past.stats().slots


def test_a_prompt_that_failed_holds_no_memory() -> None:
    model = made()
    past = cache(model)
    broken = model.model.layers[1].self_attn.q_proj
    with one_behind(), mock.patch.object(broken, "forward", side_effect=torch.OutOfMemoryError), torch.no_grad():
        try:
            model(prompt(length=N), past_key_values=past)
        except torch.OutOfMemoryError:
            waiting = past.compressed_layers()[0]
    assert waiting.whole is not None
    held = ref(waiting.whole[0].untyped_storage())
    gc.collect()
    gc.disable()
    try:
        del past, waiting
        freed = held() is None
    finally:
        gc.enable()
    assert freed
