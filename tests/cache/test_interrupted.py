"""Forward passes that fail: the next call is refused with a remedy, and steps of decoding can be taken back."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch

import winnow
from support.families import build, prompt
from support.oracle import full_layers
from support.small_caches import GREEDY, N, cache
from winnow import CacheError
from winnow.cache.compressor import LayerCompressor
from winnow.cache.tail import Tail

pytestmark = pytest.mark.usefixtures("one_thread")

UNFINISHED = "not finished"


class Failure(Exception):
    """An error in the middle of a forward pass."""


def fail(*args: Any, **kwargs: Any) -> Any:
    raise Failure


def failing(model, module, ids, past, **inputs) -> None:
    """One forward pass that fails before a module of the model."""
    hook = module.register_forward_pre_hook(fail)
    try:
        with torch.no_grad(), pytest.raises(Failure):
            model(ids, past_key_values=past, **inputs)
    finally:
        hook.remove()


def fed(model, past, ids, **inputs) -> torch.Tensor:
    with torch.no_grad():
        return model(ids, past_key_values=past, **inputs).logits


def refused(model, past, remedy: str) -> None:
    """Whatever is done with the cache, it says what to do."""
    ids = prompt(length=1)
    calls = [
        lambda: fed(model, past, ids),
        lambda: model.generate(prompt(length=N + 20), past_key_values=past, **GREEDY),
        past.stats,
        past.get_seq_length,
        lambda: past.crop(-1),
        lambda: past.reorder_cache(torch.tensor([0])),
        lambda: past.compressed_by(winnow.method("snapkv", 9)),
        lambda: fed(model, deepcopy(past), ids),
    ]
    for call in calls:
        with pytest.raises(CacheError, match=rf"{UNFINISHED}.*{remedy}"):
            call()


def test_a_prompt_that_failed_between_layers_is_refused(model):
    past = cache(model)
    failing(model, model.model.layers[1], prompt(length=N), past)
    assert [layer.seen for layer in past.compressed_layers()] == [N, 0, 0]
    refused(model, past, "start again from the prompt")
    with pytest.raises(CacheError, match="start again from the prompt"):
        past.take_back_unfinished()


def test_a_reset_cache_takes_another_prompt(model):
    past, ids = cache(model), prompt(length=N)
    failing(model, model.model.layers[2], ids, past)
    past.reset()
    assert torch.equal(model.generate(ids, past_key_values=past, **GREEDY), generated(model, ids))


def generated(model, ids):
    return model.generate(ids, past_key_values=cache(model), **GREEDY)


@pytest.mark.parametrize("every", [None, 1, 3])
@pytest.mark.parametrize("name", ["adakv", "h2o", "snapkv+bits(8)"])
def test_a_step_that_failed_can_be_taken_back_and_repeated(model, name, every):
    method, ids = winnow.method(name, budget=12), prompt(rows=2, length=N + 9)
    tried, plain = (winnow.CompressedCache(model, method, fold_every=every) for _ in range(2))
    for past in (tried, plain):
        fed(model, past, ids[:, :N])
    for index, token in enumerate(ids[:, N:].split(1, dim=1)):
        failing(model, model.model.layers[index % 3].mlp, token, tried)
        if index % 3 < 2:
            refused(model, tried, r"call cache\.take_back_unfinished\(\)")
            tried.take_back_unfinished()
            assert tried.get_seq_length() == N + index
            assert torch.equal(fed(model, tried, token), fed(model, plain, token))
        else:
            # All layers were through with the token, so the cache is whole.
            assert tried.get_seq_length() == N + index + 1
            fed(model, plain, token)
        assert tried.stats().tail_tokens == plain.stats().tail_tokens
        assert tried.stats().slots == plain.stats().slots


@pytest.mark.parametrize("family", ["gemma2", "gemma3n_text", "llama4_text", "cohere2"])
def test_sliding_layers_and_shared_keys_are_taken_back_as_well(family):
    model = build(family)
    model.set_attn_implementation("winnow")
    ids = prompt(rows=2, length=N + 8)
    tried, plain = cache(model), cache(model)
    for past in (tried, plain):
        fed(model, past, ids[:, :N])
    for index, token in enumerate(ids[:, N:].split([1, 2, 1, 3, 1], dim=1)):
        layer = model.model.layers[1 + index % 3]
        failing(model, layer, token, tried)
        with pytest.raises(CacheError, match="take_back_unfinished"):
            fed(model, tried, token)
        tried.take_back_unfinished()
        assert torch.equal(fed(model, tried, token), fed(model, plain, token))


@pytest.mark.parametrize("family", ["qwen3_next", "lfm2", "falcon_h1"])
def test_linear_states_cannot_be_taken_back(family):
    model = build(family)
    model.set_attn_implementation("winnow")
    past = cache(model)
    fed(model, past, prompt(length=N))
    failing(model, model.model.layers[1], prompt(length=1), past)
    refused(model, past, "start again from the prompt")
    with pytest.raises(CacheError, match="start again from the prompt"):
        past.take_back_unfinished()


@pytest.mark.parametrize("family", ["llama", "gemma2", "qwen3_next", "falcon_h1"])
def test_a_pass_that_failed_is_noticed_without_the_mask_function(family):
    """A 4-D mask, or a dictionary of masks, is never asked for."""
    model = build(family)
    model.set_attn_implementation("winnow")
    past, full = cache(model), full_layers(model)
    fed(model, past, prompt(length=N))
    failing(model, model.model.layers[full[-1]], prompt(length=1), past)
    keys = torch.zeros(1, 2, 1, 16)
    with pytest.raises(CacheError, match=UNFINISHED):
        past.update(keys, keys, full[0])


def test_padded_chunks_are_taken_back_row_by_row(model):
    ids, mask = prompt(rows=2, length=N + 9), torch.ones(2, N + 9, dtype=torch.int64)
    mask[0, N : N + 3] = 0
    positions = mask.cumsum(1) - 1
    tried, plain = cache(model), cache(model)
    for past in (tried, plain):
        fed(model, past, ids[:, :N])
    for start, stop in ((N, N + 5), (N + 5, N + 6), (N + 6, N + 9)):
        inputs = {"attention_mask": mask[:, :stop], "position_ids": positions[:, start:stop]}
        failing(model, model.model.layers[2], ids[:, start:stop], tried, **inputs)
        tried.take_back_unfinished()
        assert torch.equal(
            fed(model, tried, ids[:, start:stop], **inputs), fed(model, plain, ids[:, start:stop], **inputs)
        )


FOLDING = {
    "before the second row of a layer": (LayerCompressor, "fold", 4),
    "while a row is packed": (LayerCompressor, "_next", 3),
    "when all rows of a layer are packed": (Tail, "emptied", 2),
    "after a layer was folded": (Tail, "append", 2),
}


def fails_folding(model, past, ids, monkeypatch, place: str) -> None:
    """One forward pass that fails at a place of folding."""
    owner, name, last = FOLDING[place]
    original, calls = getattr(owner, name), []

    def fails_at_last(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        return fail() if len(calls) == last else original(*args, **kwargs)

    with monkeypatch.context() as patch, pytest.raises(Failure):
        patch.setattr(owner, name, fails_at_last)
        fed(model, past, ids)


@pytest.mark.parametrize("place", FOLDING)
@pytest.mark.parametrize("budget", [12, "9000B"])
def test_a_fold_that_failed_is_done_again(model, monkeypatch, budget, place):
    """Byte budgets count what earlier layers took: nothing may be counted twice."""
    method, ids = winnow.method("adakv", budget=budget, window=3), prompt(rows=2, length=N + 12)
    tried, plain = (winnow.CompressedCache(model, method, fold_every=4) for _ in range(2))
    for past in (tried, plain):
        fed(model, past, ids[:, :N])
        for token in ids[:, N : N + 4].split(1, dim=1):
            fed(model, past, token)
    fails_folding(model, tried, ids[:, N + 4 : N + 5], monkeypatch, place)
    refused(model, tried, "take_back_unfinished")
    tried.take_back_unfinished()
    assert tried.stats().tail_tokens == [0, 0]  # folded in all layers, as the pass began with that
    for token in ids[:, N + 4 :].split(1, dim=1):
        assert torch.equal(fed(model, tried, token), fed(model, plain, token))
    for layer in range(3):
        for row in range(2):
            assert [h.tolist() for h in tried.kept(layer, row)] == [h.tolist() for h in plain.kept(layer, row)]


@pytest.mark.parametrize("place", [*FOLDING, "between layers"])
@pytest.mark.parametrize("name", ["adakv(window=3)", "h2o", "knorm", "kvec(window=3, wide_window=3)", "triattention"])
def test_a_turn_that_failed_while_it_was_folded_is_put_back(model, monkeypatch, name, place):
    """Layers that had folded it hold again what they held before."""
    method, ids = winnow.method(name, budget=12), prompt(rows=2, length=N + 32)
    tried, plain = (winnow.CompressedCache(model, method, fold_every=5) for _ in range(2))
    turn = ids[:, N + 7 : N + 29]
    for past in (tried, plain):
        fed(model, past, ids[:, :N])
        for token in ids[:, N : N + 7].split(1, dim=1):
            fed(model, past, token)
    if place == "between layers":
        failing(model, model.model.layers[2], turn, tried)
    else:
        fails_folding(model, tried, turn, monkeypatch, place)
    refused(model, tried, "take_back_unfinished")
    tried.take_back_unfinished()
    before = [
        (each.slots, each.tail_tokens, each.tail_bytes, each.tokens_seen) for each in (tried.stats(), plain.stats())
    ]
    assert before[0] == before[1]
    for part in turn, *ids[:, N + 29 :].split(1, dim=1):
        assert torch.equal(fed(model, tried, part), fed(model, plain, part))
    for layer in range(3):
        for row in range(2):
            assert [h.tolist() for h in tried.kept(layer, row)] == [h.tolist() for h in plain.kept(layer, row)]


def test_a_prompt_in_chunks_and_one_that_waits_are_refused(model):
    parts, waiting = cache(model, prompt_length=N), cache(model, defer=True)
    fed(model, parts, prompt(length=9))
    failing(model, model.model.layers[1], prompt(length=9), parts)
    refused(model, parts, "start again")
    failing(model, model.model.layers[1], prompt(length=9), waiting)
    refused(model, waiting, "start again")


def test_a_failure_inside_scoring_is_refused(model, monkeypatch):
    past = cache(model)
    with monkeypatch.context() as patch, pytest.raises(Failure):
        patch.setattr(LayerCompressor, "compress", fail)
        fed(model, past, prompt(length=N))
    refused(model, past, "start again")


def test_assisted_decoding_goes_on_after_a_failure(model):
    assistant, ids = build("llama", seed=1, num_hidden_layers=1), prompt(length=N // 2).repeat(1, 2)
    past = cache(model)
    calls = []

    def sometimes(*args: Any) -> None:
        calls.append(1)
        if len(calls) == 3:
            raise Failure

    hook = model.model.layers[1].register_forward_pre_hook(sometimes)
    with pytest.raises(Failure):
        model.generate(ids, past_key_values=past, assistant_model=assistant, **GREEDY)
    hook.remove()
    with pytest.raises(CacheError, match="take_back_unfinished"):
        model.generate(ids, past_key_values=past, **GREEDY)
    past.take_back_unfinished()
    past.crop(N - past.get_seq_length())
    again = torch.cat([ids, generated(model, ids)[:, N : N + 1]], dim=1)
    out = model.generate(again, past_key_values=past, **{**GREEDY, "max_new_tokens": 9})
    assert torch.equal(out, generated(model, ids))


def test_the_prompt_of_assisted_decoding_may_be_padded(model):
    """Without a `crop` before the next tokens, the mask is one of tokens after compression."""
    ids, mask = prompt(rows=2, length=N + 3), torch.ones(2, N + 3, dtype=torch.int64)
    mask[0, :5] = 0
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    waiting, plain = cache(model), cache(model)
    waiting.activate_past_recording()
    for start, stop in ((0, N), (N, N + 1), (N + 1, N + 3)):
        inputs = {"attention_mask": mask[:, :stop], "position_ids": positions[:, start:stop]}
        ours = [fed(model, past, ids[:, start:stop], **inputs) for past in (waiting, plain)]
        torch.testing.assert_close(*ours, atol=1e-5, rtol=1e-5)


def test_a_refused_call_leaves_the_cache_as_it_was(model):
    past, plain = cache(model), cache(model)
    for each in (past, plain):
        fed(model, each, prompt(length=N))
    with pytest.raises(CacheError, match="4-D"):
        fed(model, past, prompt(length=2), attention_mask=torch.ones(1, 1, 2, N + 2, dtype=torch.bool))
    with pytest.raises(CacheError, match="gradients"):
        model(prompt(length=1), past_key_values=past)
    assert past.get_seq_length() == N
    assert torch.equal(fed(model, past, prompt(length=2)), fed(model, plain, prompt(length=2)))


def test_nothing_is_taken_back_of_a_pass_that_ended(model):
    past = cache(model)
    past.take_back_unfinished()
    fed(model, past, prompt(length=N))
    fed(model, past, prompt(length=2))
    past.take_back_unfinished()
    assert past.get_seq_length() == N + 2


def test_rows_that_were_reordered_in_some_layers_only_are_refused(model, monkeypatch):
    past = cache(model)
    fed(model, past, prompt(rows=2, length=N))
    with monkeypatch.context() as patch, pytest.raises(Failure):
        patch.setattr(past.compressed_layers()[1], "reorder_cache", fail)
        past.reorder_cache(torch.tensor([1, 0]))
    for each in (past, deepcopy(past)):
        with pytest.raises(CacheError, match=r"only some of its layers have it.*start again"):
            fed(model, each, prompt(rows=2, length=1))


def test_layers_that_were_changed_one_by_one_are_refused(model):
    past = cache(model)
    fed(model, past, prompt(length=N))
    fed(model, past, prompt(length=3))
    past.layers[1].crop(-1)
    with pytest.raises(CacheError, match=rf"different numbers of tokens, \[{N + 3}, {N + 2}, {N + 3}\]"):
        fed(model, past, prompt(length=1))


def test_the_number_of_tokens_may_be_a_tensor(model):
    """As older releases give it in assisted decoding; lengths must not become tensors, which are changed in place."""
    past, ids = cache(model), prompt(length=N + 3)
    fed(model, past, ids[:, :N])
    fed(model, past, ids[:, N:])
    past.crop(torch.tensor(-2))
    assert type(past.get_seq_length()) is int
    failing(model, model.model.layers[1], ids[:, :1], past)
    past.take_back_unfinished()
    assert past.get_seq_length() == N + 1


def test_cropping_what_a_sliding_layer_forgot_changes_nothing():
    model = build("llama4_text")
    model.set_attn_implementation("winnow")
    past, plain = cache(model), cache(model)
    for each in (past, plain):
        fed(model, each, prompt(length=N))
        fed(model, each, prompt(length=3))
    with pytest.raises(CacheError, match="activate_past_recording"):
        past.crop(-1)
    assert torch.equal(fed(model, past, prompt(length=1)), fed(model, plain, prompt(length=1)))
