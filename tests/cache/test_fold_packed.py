"""Decoding compression of packed slots: what stays is not packed anew, and bytes are a limit."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch

import winnow
from support.families import prompt
from support.folding import PROMPT, run
from winnow.composition.method import Method
from winnow.store import Dense, Earlier

pytestmark = pytest.mark.usefixtures("one_thread")


@dataclass(frozen=True)
class _Noting(Dense):
    seen: list[tuple[Earlier | None, int]] = field(default_factory=list, compare=False)

    def pack(self, view, selection, window, earlier=None):
        self.seen.append((earlier, view.keys.shape[1]))
        return super().pack(view, selection, window, earlier)


def test_stores_see_what_they_packed_before(model):
    method = winnow.method("snapkv(window=4)", 10)
    noting = Method(method.name, method.scorer, method.allocator, _Noting(), method.budget)
    cache = winnow.CompressedCache(model, noting, fold_every=6)
    run(model, cache, prompt(length=43), [PROMPT] + [1] * 13)
    seen = noting.store.seen
    assert [earlier is None for earlier, _ in seen] == [True] * 3 + [False] * 6
    assert [length for _, length in seen[3:]] == [16] * 6
    assert [tuple(earlier.slots.shape) for earlier, _ in seen[3:]] == [(2, 10)] * 6
    assert seen[6][0].block is not seen[3][0].block


STORES = [
    "bits(8)",
    "bits(2)",
    "bits(4, rotate=true)",
    "bits(k=4, v=2, rotate=true, center=true, smooth=true)",
    "bits(4, group=32)",
    "bits(4, group=32, round=queries, scales=signed, dense_first=1)",
    "spark(0.5)",
    "spark(0.5)+bits(2)",
    "spark(0.8, values=0.5, sign=query)+bits(2)",
    "spark(0.5, recovery=gaussian, recent=pruned)",
    "spark(0.3, recovery=exponential)+bits(3)",
    "spark(0.5, recovery=gaussian-printed, saliency=squared)",
    "spark(0.5, recovery=constant, sign=query)",
    "spark(0.3, recovery=none)+bits(8)",
    "spark-g(4, by=segments)",
    "spark-p(0.9)",
    "spark-p(0.9, sign=none)+bits(2)",
    "spark-g(5, recovery=gaussian)+bits(8)",
    "think(0.5)",
    "think(0.5)+bits(2)",
]


@pytest.mark.parametrize("store", STORES)
def test_packed_slots_stay_what_they_are(model, store):
    method = winnow.method(f"snapkv(window=4)+ada(floor=0.0)+{store}", 12)
    cache = winnow.CompressedCache(model, method, fold_every=6)
    ids = prompt(length=PROMPT + 13)
    run(model, cache, ids[:, : PROMPT + 6], [PROMPT] + [1] * 6)
    before = cache.layers[1].prefixes[0]
    run(model, cache, ids[:, PROMPT + 6 :], [1] * 7)
    after = cache.layers[1].prefixes[0]
    shared = 0
    for head, (old, new) in enumerate(zip(before.kept(), after.kept(), strict=True)):
        both = set(old.tolist()) & set(new.tolist())
        # The window may have been dense before.
        for position in sorted(each for each in both if each < before.length - 4):
            was = before.block.recover(before.block.starts[head] + (old == position).nonzero()[0])
            now = after.block.recover(after.block.starts[head] + (new == position).nonzero()[0])
            assert all(torch.equal(one, other) for one, other in zip(was, now, strict=True))
            shared += 1
    assert shared


@pytest.mark.parametrize(
    "store", ["bits(8)", "bits(4, dense_first=2)", "spark(0.5)+bits(4)", "spark-p(0.9)+bits(8)", "think(0.5)"]
)
def test_packed_bytes_are_a_limit(model, store):
    dense = 3 * (6 * 2 * 2 * 16 * 4 + 8)  # six tokens of a row in every layer, and how many they are
    queries = 3 * (33 if "spark" in store or "think" in store else 5) * 4 * 16 * 4  # with the spare column
    method = winnow.method(f"adakv(window=4)+{store}", f"{12000 + dense + queries}B")
    cache = winnow.CompressedCache(model, method, fold_every=6)
    ids, sizes = prompt(length=120), []
    for stop in range(100, 120):
        run(model, cache, ids[:, :stop][:, cache.get_seq_length() :], [100] if stop == 100 else [1])
        sizes.append(sum(sum(layer.prefixes[0].bytes().values()) for layer in cache.layers))
    assert 0.97 * 12000 < min(sizes) <= max(sizes) <= 12000
