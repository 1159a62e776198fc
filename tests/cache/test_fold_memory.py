"""Memory of decoding compression: flat, and made once."""

from __future__ import annotations

import pytest

import winnow
from support.families import prompt
from support.folding import PROMPT, RULES, folding, run

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("name", ["adakv", "streamingllm", "pyramidkv", "h2o", "triattention"])
def test_held_bytes_are_flat(model, name):
    """440 tokens: after the first fold, never a byte more than at that fold's end."""
    cache = winnow.CompressedCache(model, winnow.method(name, 24), fold_every=32)
    ids = prompt(length=40 + 440)
    held = []
    run(model, cache, ids[:, :40], [40])
    for step in range(440):
        run(model, cache, ids[:, 40 + step : 41 + step], [1])
        held.append(cache.stats().held_bytes)
    assert len(set(held[33:])) == 1
    assert max(held) == held[-1]
    stats = cache.stats()
    assert sum(map(sum, stats.slots)) == 24 * 2 * 3
    assert cache.layers[0].tail.keys.shape[2] == 32
    assert stats.held_bytes < stats.full_bytes / 5


def test_decode_plans_change_at_folds_only(model):
    cache = folding(model, RULES["snapkv"])
    ids = prompt(length=PROMPT + 20)
    run(model, cache, ids[:, : PROMPT + 6], [PROMPT] + [1] * 6)
    plans, buffers = [], set()
    for step in range(14):
        run(model, cache, ids[:, PROMPT + 6 + step : PROMPT + 7 + step], [1])
        plans.append(cache.layers[0]._plan)
        buffers.add(cache.layers[0].tail.keys.data_ptr())
    assert len(set(map(id, plans))) == 3
    assert len(buffers) == 1


def test_room_that_a_long_chunk_took_is_given_back(model):
    cache = folding(model, RULES["snapkv"])
    run(model, cache, prompt(length=PROMPT + 101), [PROMPT, 100, 1])
    assert cache.layers[0].tail.keys.shape[2] == 5
