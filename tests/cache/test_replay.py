"""Prompts read a second time: scores by definition, what is kept, and a cache that is as it was."""

from __future__ import annotations

from copy import deepcopy
from threading import Thread, current_thread, main_thread

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import winnow
from support.alive import alive, alive_since
from support.contexts import GREEDY
from support.families import build, prompt
from support.oracle import full_layers, masked_logits
from support.replay_oracle import ANSWER, FIRST, LATER, by_pool, kvzip_scores
from winnow.cache import replay as replaying
from winnow.cache.replay import replay
from winnow.cache.replay_words import ReplayWords
from winnow.errors import CacheError, MethodError, ModelError
from winnow.score import KVzip

WORDS = ReplayWords(*map(torch.tensor, (FIRST, LATER, ANSWER)))
MODEL = build("llama", num_hidden_layers=2)
MODEL.set_attn_implementation("winnow")


def made(family: str, **overrides):
    model = build(family, **overrides)
    model.set_attn_implementation("winnow")
    return model


def waiting(model, ids, mask=None, chunk: int | None = None, **options):
    """A cache whose prompt waits for its compression."""
    length = ids.shape[1]
    cache = winnow.CompressedCache(model, "full", prompt_length=length, defer=True, waiting_queries=8, **options)
    with torch.no_grad():
        for start in range(0, length, chunk or length):
            stop = min(length, start + (chunk or length))
            seen = None if mask is None else mask[:, :stop]
            placed = None if mask is None else (mask.cumsum(1) - 1).clamp(min=0)[:, start:stop]
            model(ids[:, start:stop], attention_mask=seen, position_ids=placed, past_key_values=cache)
    return cache


@pytest.mark.parametrize("plus", [False, True])
@pytest.mark.parametrize(
    ("family", "chunk"),
    [("llama", 16), ("llama", 64), ("qwen2", 7), ("gemma2", 12), ("gpt_oss", 12), ("qwen3_next", 20), ("mistral", 2)],
)
def test_scores_are_those_of_the_definition(family: str, chunk: int, plus: bool) -> None:
    model, ids = made(family), prompt(length=23 if chunk < 16 else 30)
    found = replay(waiting(model, ids), ids, KVzip(chunk=chunk, normalize=plus), WORDS)
    expected = kvzip_scores(model, ids[0], chunk, 4, plus)
    for index, layer in enumerate(full_layers(model)):
        torch.testing.assert_close(found.scores[0][index].double(), expected[layer], atol=2e-6, rtol=2e-4)


@pytest.mark.parametrize("plus", [False, True])
def test_kept_slots_are_the_best_of_all_layers(plus: bool) -> None:
    ids, budget = prompt(length=37), 9
    method = winnow.method("kvzip-plus" if plus else "kvzip", budget, chunk=10)
    context = winnow.compress(MODEL, ids, method, tokenizer=WORDS)
    expected = by_pool(kvzip_scores(MODEL, ids[0], 10, 4, plus), budget * 4, sinks=4)
    assert [[head.tolist() for head in context.kept(layer)] for layer in (0, 1)] == expected
    assert len({len(head) for layer in expected for head in layer}) > 1


@st.composite
def batches(draw: st.DrawFn):
    lengths = draw(st.lists(st.integers(1, 24), min_size=1, max_size=3))
    scorer = KVzip(draw(st.integers(1, 30)), draw(st.integers(0, 5)), draw(st.booleans()))
    budget = draw(st.integers(max(1, scorer.sinks), 12) | st.sampled_from(["50%", "100%"]))
    parts = draw(st.sampled_from(["", "+ada", "+uniform", "+bits(8)", "+critical"]))
    return lengths, scorer, budget, parts, draw(st.none() | st.integers(1, max(lengths))), draw(st.booleans())


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(batches())
def test_rows_of_a_batch_keep_what_they_keep_alone(batch) -> None:
    lengths, scorer, budget, parts, chunk, right = batch
    method = winnow.method(f"kvzip{parts}", budget, chunk=scorer.chunk, sinks=scorer.sinks, normalize=scorer.normalize)
    rows = [prompt(length=length, seed=index) for index, length in enumerate(lengths)]
    ids = torch.zeros(len(rows), max(lengths), dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for index, row in enumerate(rows):
        ids[index, max(lengths) - row.shape[1] :], mask[index, max(lengths) - row.shape[1] :] = row[0], 1
    if right:
        ids, mask = (
            torch.stack([row.roll(int(part.sum())) for row, part in zip(x, mask, strict=True)]) for x in (ids, mask)
        )
    together = winnow.compress(MODEL, ids, method, attention_mask=mask, chunk_size=chunk, tokenizer=WORDS)
    for index, row in enumerate(rows):
        alone = winnow.compress(MODEL, row, method, tokenizer=WORDS)
        for layer in (0, 1):
            kept, expected = together.kept(layer, index), alone.kept(layer)
            # A batch is computed otherwise, so the last bits of a score may differ: sizes, and nearly all tokens.
            assert sum(map(len, kept)) + sum(map(len, together.kept(1 - layer, index))) == sum(
                len(head) for which in (0, 1) for head in alone.kept(which)
            )
            assert all(_alike(a, b) for a, b in zip(kept, expected, strict=True))


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_padded_row_is_read_again_where_it_ends_alone(family: str) -> None:
    """Learned positions (gpt2) show a replay that counts padding."""
    model, short = made(family), prompt(length=21, seed=3)
    ids = torch.cat([prompt(length=36), torch.nn.functional.pad(short, (15, 0))])
    mask = torch.ones_like(ids)
    mask[1, :15] = 0
    found = replay(waiting(model, ids, mask), ids, KVzip(chunk=8), WORDS)
    expected = replay(waiting(model, short), short, KVzip(chunk=8), WORDS)
    for scores, alone in zip(found.scores[1], expected.scores[0], strict=True):
        torch.testing.assert_close(scores, alone, atol=2e-6, rtol=2e-4)


def test_passes_of_other_threads_are_not_heard() -> None:
    """Threads may share a model: what others give its layers in the midst of a replay is none of it."""
    model, ids, others = made("llama"), prompt(length=40), prompt(length=5, seed=9)
    expected = replay(waiting(model, ids), ids, KVzip(chunk=16, normalize=True), WORDS)
    cache = waiting(model, ids)

    def read_beside(*_) -> None:
        if current_thread() is main_thread():
            thread = Thread(target=model, args=(others,))
            thread.start()
            thread.join()

    model.model.layers[1].self_attn.q_proj.register_forward_hook(read_beside)
    found = replay(cache, ids, KVzip(chunk=16, normalize=True), WORDS)
    assert all(torch.equal(a, b) for a, b in zip(found.scores[0], expected.scores[0], strict=True))


def _alike(kept: torch.Tensor, expected: torch.Tensor) -> bool:
    return len(set(kept.tolist()) ^ set(expected.tolist())) <= 2


@pytest.mark.parametrize("name", ["kvzip", "kvzip-plus", "kvzip+ada", "kvzip+critical", "kvzip+uniform"])
@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt_oss", "qwen3_next", "gemma3n_text"])
def test_decoding_is_dense_attention_over_what_was_kept(family: str, name: str) -> None:
    model, ids = made(family), prompt(length=43)
    context = winnow.compress(model, ids[:, :38], winnow.method(name, "40%"), tokenizer=WORDS)
    with torch.no_grad():
        found = model(ids[:, 38:], past_key_values=context.cache()).logits
    kept = {layer: context.kept(layer) for layer in full_layers(model)}
    expected = masked_logits(model, ids, 38, lambda layer: kept.get(layer))[:, 38:]
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("family", ["llama", "gemma2", "qwen3_next"])
def test_a_replay_leaves_the_prompt_as_it_was(family: str) -> None:
    model, ids = made(family), prompt(length=40)
    cache = waiting(model, ids[:, :35])
    before = deepcopy(cache)
    replay(cache, ids[:, :35], KVzip(chunk=9), WORDS)
    assert cache.stats() == before.stats()
    with torch.no_grad():
        again, first = (
            model(ids[:, 35:], past_key_values=each.compressed_by("full")).logits for each in (cache, before)
        )
    assert torch.equal(again, first)


def test_a_replay_that_failed_leaves_the_prompt_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids = made("gemma2"), prompt(length=35)
    cache, calls = waiting(model, ids), []

    def interrupted(self, view):
        calls.append(view)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return KVzip.replayed(self, view)

    class Interrupted(KVzip):
        replayed = interrupted

    with pytest.raises(KeyboardInterrupt):
        replay(cache, ids, Interrupted(), WORDS)
    found = replay(cache, ids, KVzip(), WORDS)
    expected = replay(waiting(model, ids), ids, KVzip(), WORDS)
    assert all(torch.equal(a, b) for a, b in zip(found.scores[0], expected.scores[0], strict=True))
    assert cache.compressed_by(winnow.method("kvzip", 8), replayed=found).kept(1)


def test_the_prompt_may_come_in_chunks() -> None:
    ids = prompt(length=40)
    whole, parts = (winnow.compress(MODEL, ids, "kvzip @ 10", chunk_size=chunk, tokenizer=WORDS) for chunk in (None, 7))
    assert [[head.tolist() for head in whole.kept(layer)] for layer in (0, 1)] == [
        [head.tolist() for head in parts.kept(layer)] for layer in (0, 1)
    ]


def test_a_short_prompt_is_kept_whole() -> None:
    for length in (1, 2, 3, 5):
        context = winnow.compress(MODEL, prompt(length=length), "kvzip @ 5", tokenizer=WORDS)
        assert all(len(head) == length for layer in (0, 1) for head in context.kept(layer))


@pytest.mark.parametrize("store", ["", "+bits(4)", "+spark(0.5)", "+kivi(4)"])
def test_a_budget_in_bytes_is_met(store: str) -> None:
    context = winnow.compress(MODEL, prompt(length=240), f"kvzip{store} @ 20KiB", tokenizer=WORDS)
    kinds = context.stats().bytes
    held = sum(size for kind, size in kinds.items() if not kind.startswith("tail"))
    assert 0.9 * 20 * 1024 <= held <= 20 * 1024 + 64
    slots = context.stats().slots
    assert len({count for layer in slots for count in layer}) > 2


def test_contexts_are_written_and_read(tmp_path) -> None:
    ids = prompt(length=40)
    context = winnow.compress(MODEL, ids, "kvzip+bits(8) @ 12", tokenizer=WORDS)
    context.save(tmp_path / "c.safetensors")
    read = winnow.load_context(tmp_path / "c.safetensors", MODEL)
    assert str(read.method) == str(context.method)
    longer = torch.cat([ids, prompt(length=4, seed=3)], dim=1)
    for beams in (1, 3):
        caches = [context.cache(), read.cache()]
        for cache in caches:
            cache.batch_repeat_interleave(beams)
        answers = [MODEL.generate(longer, past_key_values=cache, num_beams=beams, **GREEDY) for cache in caches]
        assert torch.equal(*answers)


def test_time_and_memory_are_those_of_the_fork() -> None:
    ids = prompt(length=60)
    context = winnow.compress(MODEL, ids, "kvzip @ 8", tokenizer=WORDS)
    stats = context.stats()
    assert stats.compress_seconds > 0
    assert sum(map(sum, stats.slots)) == 8 * 4
    assert stats.used_bytes < stats.full_bytes / 5
    assert context.cache().compression.replayed is None


def test_nothing_but_the_fork_is_alive_afterwards() -> None:
    ids = prompt(length=400)
    winnow.compress(MODEL, ids[:, :150], "kvzip @ 8", tokenizer=WORDS)
    before = alive()
    context = winnow.compress(MODEL, ids[:, :240], "kvzip @ 8", tokenizer=WORDS)
    added = alive_since(before)
    kept_whole = context.input_ids.untyped_storage().data_ptr()
    assert sum(size for where, size in added.items() if where != kept_whole) <= context.stats().held_bytes + 64


def test_what_cannot_be_read_again_is_refused() -> None:
    ids = prompt(length=30)
    with pytest.raises(MethodError, match=r"winnow\.compress\(model"):
        winnow.CompressedCache(MODEL, "kvzip @ 8")
    with pytest.raises(MethodError, match="tokenizer=tokenizer"):
        winnow.compress(MODEL, ids, "kvzip @ 8")
    with pytest.raises(MethodError, match="without pixel_values"):
        winnow.compress(MODEL, ids, "kvzip @ 8", tokenizer=WORDS, pixel_values=torch.zeros(1))
    with pytest.raises(MethodError, match="fold_every"):
        winnow.compress(MODEL, ids, "kvzip @ 8", tokenizer=WORDS, fold_every=8)
    with pytest.raises(CacheError, match=r"winnow\.compress\(model"):
        waiting(MODEL, ids).compressed_by("kvzip @ 8")
    with pytest.raises(CacheError, match=r"\[1, 30\], not \[1, 29\]"):
        replay(waiting(MODEL, ids), ids[:, 1:], KVzip(), WORDS)
    with pytest.raises(CacheError, match="defer=True"):
        replay(winnow.CompressedCache(MODEL, "full"), ids, KVzip(), WORDS)
    with pytest.raises(CacheError, match="one by one"):
        winnow.compress(made("gemma2"), prompt(rows=2), "kvzip @ 8", tokenizer=WORDS)
    with pytest.raises(ModelError, match="has a linear state"):
        winnow.compress(made("falcon_h1"), ids, "kvzip @ 8", tokenizer=WORDS)


@pytest.mark.parametrize(
    ("length", "chunk", "room"), [(480, 2048, 21), (470, 40, 31), (300, 250, 201), (300, 201, 201), (400, 50, 101)]
)
def test_chunks_are_as_long_as_fits_behind_the_prompt(length: int, chunk: int, room: int) -> None:
    ids = prompt(length=length)
    found = winnow.compress(MODEL, ids, winnow.method("kvzip", 8, chunk=chunk), tokenizer=WORDS)
    expected = winnow.compress(MODEL, ids, winnow.method("kvzip", 8, chunk=min(chunk, room)), tokenizer=WORDS)
    for layer, _ in enumerate(found.cache().layers):
        kept = zip(found.cache().kept(layer), expected.cache().kept(layer), strict=True)
        assert all(torch.equal(one, other) for one, other in kept)


def test_a_prompt_that_leaves_no_room_to_be_read_again_is_refused() -> None:
    with pytest.raises(MethodError, match="shorten the prompt by 1 tokens, or use a method that reads it once"):
        winnow.compress(MODEL, prompt(length=486), "kvzip @ 8", tokenizer=WORDS)
    winnow.compress(MODEL, prompt(length=485), "kvzip @ 8", tokenizer=WORDS)


def test_nothing_is_computed_where_words_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(MODEL), "forward", lambda *_, **__: pytest.fail("the model was called"))
    with pytest.raises(MethodError):
        winnow.compress(MODEL, prompt(length=9), "kvzip @ 8")
    assert replaying.words_of(WORDS, KVzip()) is WORDS
