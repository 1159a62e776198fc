"""Caches made of others: forks, other methods over one prefill, longer prompts, joined rows."""

from __future__ import annotations

import copy

import pytest
import torch

import winnow
from support.families import prompt
from support.oracle import masked_logits
from support.small_caches import GREEDY, N, cache, method, stepwise
from winnow.cache.tail import Tail


def test_forks_share_the_prefix_and_nothing_else(model):
    past = cache(model)
    ids = prompt(length=N)
    with torch.no_grad():
        model(ids, past_key_values=past)
    fork = copy.deepcopy(past)
    assert fork.compressed_layers()[0].prefixes[0] is past.compressed_layers()[0].prefixes[0]
    a = torch.cat([ids, prompt(length=5, seed=8)], dim=1)
    b = torch.cat([ids, prompt(length=5, seed=9)], dim=1)
    out_a = model.generate(a, past_key_values=past, **GREEDY)
    out_b = model.generate(b, past_key_values=fork, **GREEDY)
    for out, kept in ((out_a, past.kept), (out_b, fork.kept)):
        expected = masked_logits(model, out, N, kept)[:, N + 4 : -1].argmax(-1)
        assert torch.equal(out[:, N + 5 :], expected)


def test_the_text_of_a_method_does_what_the_method_does(model):
    ids, made = prompt(length=N), method()
    expected = winnow.compress(model, ids, made)
    context = winnow.compress(model, ids, str(made))
    own, waiting = winnow.CompressedCache(model, str(made)), cache(model, defer=True)
    with torch.no_grad():
        for past in (own, waiting):
            model(ids, past_key_values=past)
    for found in (context, own, waiting.compressed_by(str(made))):
        assert found.method == made
        for layer in range(len(own.layers)):
            kept = zip(found.kept(layer), expected.kept(layer), strict=True)
            assert all(torch.equal(one, other) for one, other in kept)


def test_an_unknown_text_is_refused_before_anything_is_made(model):
    for make in (winnow.CompressedCache, lambda model, text: winnow.compress(model, prompt(length=N), text)):
        with pytest.raises(winnow.MethodError, match="did you mean 'adakv'"):
            make(model, "adakvv @ 128")
        with pytest.raises(winnow.BudgetError, match="needs a budget"):
            make(model, "adakv")


def test_a_cache_says_what_it_holds_in_a_line(model):
    past = cache(model)
    empty = "CompressedCache(adakv(window=3, floor=0) @ 9, tokens seen: 0, rows: 0, held: 0B of 0B)"
    assert repr(past) == empty
    with torch.no_grad():
        model(prompt(rows=2, length=N), past_key_values=past)
    text, stats = repr(past), past.stats()
    assert "tokens seen: 40, rows: 2, held: " in text
    assert f"{stats.full_bytes / 1024:g}KiB" in text
    assert "\n" not in text


def test_a_cache_that_was_interrupted_has_a_line_as_well(model):
    past, inside = cache(model), []

    def stop(*_):
        inside.append(repr(past))
        raise KeyboardInterrupt

    hook = model.model.layers[1].self_attn.register_forward_pre_hook(stop)
    with pytest.raises(KeyboardInterrupt), torch.no_grad():
        model(prompt(length=N), past_key_values=past)
    hook.remove()
    assert inside == [repr(past)]
    assert "not finished" in repr(past)


def test_one_prefill_serves_many_methods(model):
    ids = prompt(length=N)
    waiting = cache(model, defer=True)
    with torch.no_grad():
        model(ids, past_key_values=waiting)
    for name in ("snapkv", "h2o", "keydiff"):
        chosen = winnow.method(name, budget=11)
        own = winnow.CompressedCache(model, chosen)
        with torch.no_grad():
            model(ids, past_key_values=own)
        forked = waiting.compressed_by(chosen)
        for layer in range(3):
            assert [k.tolist() for k in forked.kept(layer)] == [k.tolist() for k in own.kept(layer)]
    with pytest.raises(winnow.CacheError, match="no prompt is waiting"):
        forked.compressed_by(method())


def test_forks_read_a_waiting_prompt_where_it_lies(model, monkeypatch):
    ids = prompt(length=N)
    waiting = cache(model, defer=True)
    with torch.no_grad():
        model(ids, past_key_values=waiting)
    copied = []
    clone = Tail.clone
    monkeypatch.setattr(Tail, "clone", lambda self: copied.append(self) or clone(self))
    before = waiting.stats()
    forks = [waiting.compressed_by(winnow.method(name, 11)) for name in ("snapkv", "adakv")]
    assert not copied
    assert waiting.stats() == before
    dense = {part.untyped_storage().data_ptr() for layer in waiting.compressed_layers() for part in layer.tail.filled()}
    for fork in forks:
        for layer in fork.compressed_layers():
            assert dense.isdisjoint(part.untyped_storage().data_ptr() for part in (layer.tail.keys, layer.tail.values))
        with torch.no_grad():
            model(ids[:, :3], past_key_values=fork)
    assert waiting.stats() == before
    assert copy.deepcopy(waiting).compressed_layers()[0].tail is not waiting.compressed_layers()[0].tail
    assert copied


def test_a_common_start_goes_on_into_several_prompts(model):
    ids = prompt(length=N)
    start = winnow.CompressedCache(model, method(), prompt_length=31)
    with torch.no_grad():
        model(ids[:, :30], past_key_values=start)
        for length in (33, N):
            fork, own = start.extended(length), cache(model)
            model(ids[:, 30:length], past_key_values=fork)
            model(ids[:, :length], past_key_values=own)
            assert [k.tolist() for k in fork.kept(1)] == [k.tolist() for k in own.kept(1)]
        with pytest.raises(winnow.CacheError, match="cannot get the length"):
            fork.extended(60)


def test_joined_caches_decode_as_if_alone(model):
    prompts = [prompt(length=n, seed=n) for n in (N, 17, 30)]
    caches, alone = [], []
    with torch.no_grad():
        for ids in prompts:
            caches.append(cache(model))
            model(ids, past_key_values=caches[-1])
            alone.append(stepwise(model, ids, steps=4))
        together = winnow.CompressedCache.joined(caches)
        tokens = torch.cat([out[:, ids.shape[1]][None] for out, ids in zip(alone, prompts, strict=True)])
        positions = torch.tensor([[ids.shape[1]] for ids in prompts])
        for step in range(1, 4):
            logits = model(tokens, position_ids=positions, past_key_values=together).logits[:, -1]
            tokens, positions = logits.argmax(-1, keepdim=True), positions + 1
            expected = torch.stack([out[0, ids.shape[1] + step] for out, ids in zip(alone, prompts, strict=True)])
            assert torch.equal(tokens[:, 0], expected)


@torch.no_grad()
@pytest.mark.parametrize("fold_every", [None, 6])
def test_rows_come_and_go_while_others_are_decoded(model, fold_every):
    """Every row says what it says alone, whoever is beside it: those of a service do."""
    said = prompt(rows=3, length=24, seed=7)

    def begun(row):
        past = winnow.CompressedCache(model, method(), fold_every=fold_every)
        model(prompt(length=(N, 17, 30)[row], seed=row), past_key_values=past)
        return past

    def fed(past, rows, at):
        """Logits [R, V] behind the tokens that rows say at steps `at` of their own."""
        tokens = torch.stack([said[row, step] for row, step in zip(rows, at, strict=True)])
        places = torch.tensor([[(N, 17, 30)[row] + step] for row, step in zip(rows, at, strict=True)])
        return model(tokens[:, None], position_ids=places, past_key_values=past).logits[:, -1]

    alone = [begun(row) for row in range(3)]
    expected = [torch.cat([fed(past, [row], [step]) for step in range(14)]) for row, past in enumerate(alone)]
    first, waiting = winnow.CompressedCache.joined([begun(0), begun(1)]), begun(2)
    for step in range(4):
        torch.testing.assert_close(fed(first, [0, 1], [step] * 2), torch.stack([each[step] for each in expected[:2]]))
    every = winnow.CompressedCache.joined([first, waiting])
    for step in range(5):
        found = fed(every, [0, 1, 2], [4 + step, 4 + step, step])
        torch.testing.assert_close(
            found, torch.stack([expected[0][4 + step], expected[1][4 + step], expected[2][step]])
        )
    second = every.alone(1)
    assert second.get_seq_length() == 17 + 9
    every.batch_select_indices(torch.tensor([0, 2]))
    for step in range(5):
        found = fed(every, [0, 2], [9 + step, 5 + step])
        torch.testing.assert_close(found, torch.stack([expected[0][9 + step], expected[2][5 + step]]))
        torch.testing.assert_close(fed(second, [1], [9 + step])[0], expected[1][9 + step])
    for past, own, length in ((second, alone[1], 17 + 14), (every.alone(0), alone[0], N + 14)):
        assert past.get_seq_length() == own.get_seq_length() == length
        for layer in range(len(past.layers)):
            assert list(map(torch.Tensor.tolist, past.kept(layer))) == list(map(torch.Tensor.tolist, own.kept(layer)))
    # A turn of several tokens, and taking some of it back.
    turn = prompt(length=4, seed=9)
    torch.testing.assert_close(model(turn, past_key_values=second).logits, model(turn, past_key_values=alone[1]).logits)
    if fold_every is None:
        second.crop(-2)
        assert second.get_seq_length() == 17 + 16


@torch.no_grad()
def test_rows_that_cannot_be_told_apart_stay_together(model):
    past = cache(model)
    with pytest.raises(winnow.CacheError, match="cannot get its own cache"):
        past.alone(0)
    model(prompt(rows=2, length=N), past_key_values=past)
    with pytest.raises(winnow.CacheError, match="no row 2"):
        past.alone(2)
    mask = torch.ones(2, N + 3, dtype=torch.int64)
    mask[1, -3] = 0
    model(prompt(rows=2, length=3), past_key_values=past, attention_mask=mask)
    with pytest.raises(winnow.CacheError, match="padding"):
        past.alone(0)
    with pytest.raises(winnow.CacheError, match="padding"):
        winnow.CompressedCache.joined([past, past])
