"""Folding where nothing is evicted: "full" with packed slots packs what its tail held, and keeps all."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

import winnow
from support import device_plan
from support.families import build, prompt
from support.folding import PROMPT, run
from support.graphed import CAPTURE, places
from support.quantizers import assert_asymmetric
from support.ready import ready
from winnow import GraphedDecoder, MethodError
from winnow.cache.compressor import LayerCompressor
from winnow.composition.method import Method
from winnow.kernels import DenseBlock, PackedBlock, parts_of
from winnow.store import Packed

pytestmark = pytest.mark.usefixtures("one_thread")

STORES = [
    "bits(4)",
    "bits(2, rotate=false, center=false, smooth=false)",
    "bits(4, group=32, round=queries, scales=signed, dense_first=2)",
    "bits(16, 4)",
    "mixedbits(5)",
    "spark(0.5)",
    "spark(0.5, values=0.3, recovery=gaussian)+bits(4)",
    "spark-p(0.9)+bits(8)",
    "spark-g(4, by=segments)",
    "think(0.5)+bits(8)",
]


def folding(model, name: str, **options) -> winnow.CompressedCache:
    return winnow.CompressedCache(model, ready(name, None, shape=(3, 2)), **options)


def recovered(cache: winnow.CompressedCache, layer: int, row: int = 0) -> tuple[Tensor, Tensor]:
    """[H, N, D] and [H, N, Dv], what attention takes the slots of a row for; all heads hold as many."""
    block = cache.layers[layer].prefixes[row].block
    return block.recover(torch.arange(int(block.offsets[-1])).view(len(block.starts), -1))


def held(cache: winnow.CompressedCache) -> list[list[int]]:
    return [head.tolist() for layer in range(len(cache.layers)) for head in cache.kept(layer)]


@pytest.mark.parametrize("store", STORES)
def test_tails_are_packed_as_under_a_budget_that_is_never_reached(model, store):
    """Budgets take another way: all slots are recovered, scored, and those that are packed told from new ones."""
    ids, chunks = prompt(length=PROMPT + 40), [PROMPT, *[1] * 13, 13, *[1] * 14]
    cache = folding(model, f"full+{store}", fold_every=6)
    limited = ready(f"knorm+{store}", 1_000_000, shape=(3, 2))
    other = winnow.CompressedCache(model, limited, fold_every=6)
    assert torch.equal(run(model, cache, ids, chunks), run(model, other, ids, chunks))
    tail = cache.stats().tail_tokens[0]
    assert tail == other.stats().tail_tokens[0] <= 6
    assert held(cache) == held(other) == [list(range(len(ids[0]) - tail))] * 6
    for layer in range(3):
        for mine, theirs in zip(recovered(cache, layer), recovered(other, layer), strict=True):
            assert torch.equal(mine, theirs)


@pytest.mark.parametrize(
    "family",
    [
        *("gemma2", "gemma3n_text", "gpt_oss", "falcon_h1"),
        *("deepseek_v2", "deepseek_v3"),
    ],
)
def test_every_family(family):
    model, ids, chunks = build(family), prompt(length=37), [12, *[1] * 6, 8, *[1] * 11]
    model.set_attn_implementation("winnow")
    found = [
        run(model, winnow.CompressedCache(model, winnow.method(name, budget), fold_every=5), ids, chunks)
        for name, budget in (("full+bits(4)", None), ("knorm+bits(4)", 1_000_000))
    ]
    assert torch.equal(*found)


@dataclass
class _Arrived:
    """Dense keys and values [H, N, D] of every layer, as they came: the prompt's, and what each fold brought."""

    keys: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)

    def add(self, keys: Tensor, values: Tensor) -> None:
        self.keys.append(keys.clone())
        self.values.append(values.clone())


@pytest.fixture
def arrived(monkeypatch) -> dict[int, _Arrived]:
    found: dict[int, _Arrived] = {}
    compress, fold = LayerCompressor.compress, LayerCompressor.fold

    def compressing(self, row, parts):
        found.setdefault(self.index, _Arrived()).add(parts.keys, parts.values)
        return compress(self, row, parts)

    def folds(self, row, old, tail, queries):
        found[self.index].add(*tail)
        return fold(self, row, old, tail, queries)

    monkeypatch.setattr(LayerCompressor, "compress", compressing)
    monkeypatch.setattr(LayerCompressor, "fold", folds)
    return found


@pytest.mark.parametrize(
    ("store", "prompted", "every", "residual"),
    [
        ("kivi(4)", 30, 32, 0),
        ("kivi(2)", 70, 7, 0),
        ("kivi(3)", 3, 50, 0),
        ("kivi(4, residual=40)", 50, 13, 40),
        ("kivi(4, residual=1)", 33, 32, 1),
        ("think(0.5)+kivi(4, residual=9)", 70, 32, 9),
    ],
)
def test_kivi_packs_whole_groups_of_what_came(model, arrived, store, prompted, every, residual):
    """Group g of a head is its tokens 32·g to 32·g + 31, whichever fold brought them; the last slots stay dense."""
    length = prompted + 100
    cache = folding(model, f"full+{store}", fold_every=every)
    run(model, cache, prompt(length=length), [prompted, *[1] * (length - prompted)])
    stored = length - cache.stats().tail_tokens[0]
    whole = (stored - residual) // 32 * 32
    assert held(cache) == [list(range(stored))] * 6
    bits = int(store.partition("kivi(")[2][0])
    for layer in range(3):
        keys, values = (torch.cat(parts, 1)[:, :stored] for parts in (arrived[layer].keys, arrived[layer].values))
        found_keys, found_values = recovered(cache, layer)
        (packed,) = (part for part in parts_of(cache.layers[layer].prefixes[0].block) if isinstance(part, PackedBlock))
        assert packed.offsets.tolist() == [0, whole, 2 * whole]
        torch.testing.assert_close(found_keys[:, whole:], keys[:, whole:], rtol=0, atol=0)
        torch.testing.assert_close(found_values[:, whole:], values[:, whole:], rtol=0, atol=0)
        kept = packed.keys.channels
        for head in range(2):
            channels = range(keys.shape[2]) if kept is None else kept[head].tolist()
            for start in range(0, whole, 32):
                group = slice(start, start + 32)
                for channel in channels:
                    dense, now = keys[head, group, channel], found_keys[head, group, channel]
                    assert_asymmetric(dense.numpy(), now.numpy(), bits, torch.float32)
            for slot in range(whole):
                assert_asymmetric(values[head, slot].numpy(), found_values[head, slot].numpy(), bits, torch.float32)


@pytest.mark.parametrize("store", ["bits(4)", "kivi(4)", "spark(0.5)+bits(8)"])
def test_errors_do_not_grow_with_the_number_of_folds(store):
    """Slots of 20 folds of 16 tokens are those of one fold of 320; so is what the model makes of them, but for noise.

    A single layer, as others see what packed slots did to the tokens before.
    """
    model, ids, chunks = build("llama", num_hidden_layers=1), prompt(length=PROMPT + 336), [PROMPT, *[1] * 336]
    model.set_attn_implementation("eager")
    dense = run(model, DynamicCache(config=model.config), ids, [len(ids[0])])
    model.set_attn_implementation("winnow")
    errors, slots = [], []
    for every in (16, 320):
        cache = folding(model, f"full+{store}", fold_every=every)
        logits = run(model, cache, ids, chunks)
        errors.append((logits - dense)[:, -15:].norm() / dense[:, -15:].norm())
        slots.append([side[:, : PROMPT + 300] for side in recovered(cache, 0)])
    assert 0 < errors[0] < 1.05 * errors[1]
    if "kivi" not in store:  # whose groups begin elsewhere where the rest of a group is longer
        for often, once in zip(*slots, strict=True):
            torch.testing.assert_close(often, once, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("store", "share"), [("bits(4)", 0.4), ("kivi(4, residual=32)", 0.6), ("bits(8)", 0.5)])
def test_a_long_answer_takes_the_bytes_of_its_packed_form(model, store, share):
    """With D = 64 and fp32 4 bits take an eighth, and scales and positions beside that; the tail is dense."""
    model = build("llama", num_hidden_layers=1, head_dim=64)
    model.set_attn_implementation("winnow")
    ids = prompt(length=32 + 480)
    folded, grown = folding(model, f"full+{store}", fold_every=32), folding(model, f"full+{store}")
    run(model, folded, ids, [32, *[1] * 480])
    run(model, grown, ids, [32, *[16] * 30])
    mine, theirs = folded.stats(), grown.stats()
    assert mine.held_bytes < share * mine.full_bytes
    assert theirs.held_bytes > 0.9 * theirs.full_bytes
    assert max(mine.tail_tokens) <= 32
    assert mine.tokens_seen == 512


@pytest.mark.parametrize("store", ["bits(4)", "kivi(4, residual=8)", "spark(0.5)"])
def test_rows_of_a_padded_batch_are_what_they_are_alone(model, store):
    lengths, steps = [41, 3, 17], 50
    rows = [prompt(length=length + steps, seed=length)[0] for length in lengths]
    mask = torch.stack([torch.arange(max(lengths)) >= max(lengths) - length for length in lengths]).long()
    ids = torch.zeros_like(mask)
    for into, row, length in zip(ids, rows, lengths, strict=True):
        into[max(lengths) - length :] = row[:length]
    cache, parts = folding(model, f"full+{store}", fold_every=16), []
    with torch.no_grad():
        model(ids, attention_mask=mask, position_ids=(mask.cumsum(1) - 1).clamp(min=0), past_key_values=cache)
        for step in range(steps):
            mask = torch.cat([mask, mask.new_ones(3, 1)], dim=1)
            now = torch.stack([row[length + step] for row, length in zip(rows, lengths, strict=True)])[:, None]
            positions = mask.sum(1, keepdim=True) - 1
            parts.append(model(now, attention_mask=mask, position_ids=positions, past_key_values=cache).logits)
    logits = torch.cat(parts, dim=1)
    for row, length in enumerate(lengths):
        alone = folding(model, f"full+{store}", fold_every=16)
        expected = run(model, alone, rows[row][None], [length, *[1] * steps])[0, length:]
        # Numbers half-way between two integers may go either way.
        torch.testing.assert_close(logits[row], expected, atol=2e-2, rtol=0)
        assert [head.tolist() for head in cache.kept(1, row)] == [head.tolist() for head in alone.kept(1)]


def test_forks_and_beams_fold_by_themselves(model):
    ids = prompt(length=PROMPT + 20)
    cache = folding(model, "full+bits(4)", fold_every=6)
    run(model, cache, ids[:, : PROMPT + 8], [PROMPT, *[1] * 8])
    cache.batch_repeat_interleave(2)
    later = torch.cat([prompt(length=12, seed=seed) for seed in (7, 8)])
    together = run(model, cache, later, [1] * 12)
    for row in range(2):
        alone = folding(model, "full+bits(4)", fold_every=6)
        run(model, alone, ids[:, : PROMPT + 8], [PROMPT, *[1] * 8])
        torch.testing.assert_close(
            together[row], run(model, alone, later[row : row + 1], [1] * 12)[0], atol=2e-2, rtol=0
        )
    out = model.generate(
        ids, past_key_values=folding(model, "full+bits(4)", fold_every=4), num_beams=2, max_new_tokens=9
    )
    assert out.shape[1] == PROMPT + 29


@pytest.mark.parametrize("store", ["bits(4)", "kivi(4)"])
def test_long_turns_are_packed_at_once(model, store):
    cache = folding(model, f"full+{store}", fold_turns=10)
    run(model, cache, prompt(length=200), [PROMPT, 100, *[1] * 30, 40])
    assert cache.stats().tail_tokens == [0]
    assert held(cache) == [list(range(200))] * 6
    packed = sum(part.slots for part in parts_of(cache.layers[0].prefixes[0].block) if isinstance(part, PackedBlock))
    assert packed == 2 * (192 if store == "kivi(4)" else 200)


def test_contexts_are_saved_and_their_caches_fold(model, tmp_path):
    context = winnow.compress(model, prompt(length=70), "full+kivi(4, residual=5)", fold_every=8)
    read = winnow.load_context(context.save(tmp_path / "c.safetensors"), model)
    more = prompt(length=40, seed=2)
    folded, grown = context.cache(), read.cache()
    run(model, folded, more, [1] * 40)
    run(model, grown, more, [1] * 40)
    assert (folded.stats().tail_tokens, grown.stats().tail_tokens) == ([8], [40])
    assert held(folded)[0] == list(range(102))
    assert folded.stats().held_bytes < grown.stats().held_bytes


def _slots(prefix, head: int) -> tuple[Tensor, Tensor]:
    keys, values = prefix.recover(
        torch.arange(int(prefix.starts[head]), int(prefix.stops[head]), device=parts_of(prefix)[0].device)
    )
    return keys, values


@pytest.mark.parametrize("store", ["bits(8)", "kivi(8, residual=1)"])
def test_steps_of_graphs_between_folds(monkeypatch, store):
    monkeypatch.setattr(device_plan, "_slots", _slots)  # what stands in for a GPU's kernels knows dense slots only
    with places(kernels=False) as both:
        here, device = both.here, both.device
        ids = prompt(length=60)
        expected = folding(here.model, f"full+{store}", fold_every=6)
        cache = folding(device.model, f"full+{store}", fold_every=6)
        here.run(expected, ids)
        device.run(cache, ids)
        decoder, replayed = GraphedDecoder(device.model, cache, capture=CAPTURE), []
        for token in range(20):
            logits = here.run(expected, torch.tensor([[token + 3]]))
            found = decoder.step(device.to(torch.tensor([token + 3])))
            found = found.cpu() if found.is_cuda else found.here
            torch.testing.assert_close(found, logits, atol=2e-2, rtol=0)
            replayed.append(decoder._graph is not None)
        assert True in replayed
        assert False in replayed
        assert cache.stats().tail_tokens == expected.stats().tail_tokens == [2]
        assert held(cache) == held(expected)


class _Seeing:
    queries = 0

    def __init__(self) -> None:
        self.least: list[float] = []

    def see(self, view, prefix) -> None:
        self.least.append(float(view.keys.norm(dim=-1).min()))


def test_observers_see_all_keys_and_change_nothing(model):
    seeing, ids, chunks = _Seeing(), prompt(length=60), [PROMPT, *[1] * 30]
    watched = folding(model, "full+spark(0.5)+bits(4)", fold_every=6, observer=seeing)
    alone = folding(model, "full+spark(0.5)+bits(4)", fold_every=6)
    assert torch.equal(run(model, watched, ids, chunks), run(model, alone, ids, chunks))
    assert len(seeing.least) == 3 * 5
    assert min(seeing.least) > 0


def test_packed_slots_are_not_recovered(model, monkeypatch):
    """A fold of a few tokens would else spread out the whole cache."""
    cache = folding(model, "full+bits(4, dense_first=1)", fold_every=6)
    run(model, cache, prompt(length=PROMPT), [PROMPT])
    monkeypatch.setattr(PackedBlock, "recover", None)
    run(model, cache, prompt(length=20, seed=1), [1] * 20)
    first = parts_of(cache.layers[0].prefixes[0].block)[0]
    assert isinstance(first, DenseBlock)
    assert bool((first.keys != 0).any(dim=-1).all())


@dataclass(frozen=True)
class _Together(Packed):
    """Writes slots in a way of its own, all together."""

    @property
    def separable(self) -> bool:
        return False

    @property
    def appendable(self) -> bool:
        return False


def test_stores_that_cannot_append(model):
    method = winnow.method("full+bits(4)")
    own = Method("own", method.scorer, method.allocator, _Together(precision=method.store.precision), method.budget)
    with pytest.raises(MethodError, match=r"in groups.*leave fold_every out"):
        winnow.CompressedCache(model, own, fold_every=8)
