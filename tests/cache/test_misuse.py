"""Misuse that would go unnoticed: it is refused, or warned of."""

from __future__ import annotations

import copy
import pickle
import warnings
from io import BytesIO

import numpy as np
import pytest
import torch
from torch import nn

import winnow
from support.families import build, prompt
from support.small_caches import GREEDY, N, cache, made
from winnow import CacheError, MethodError, ModelError
from winnow.models.cache_argument import with_cache

pytestmark = pytest.mark.usefixtures("one_thread")

ONE_BY_ONE = r"prompt_length=90, but after 40 tokens"


def run(model, past, *chunks: int):
    """The logits of the last of some chunks."""
    with torch.no_grad():
        for index, size in enumerate(chunks):
            logits = model(prompt(length=size, seed=index), **with_cache(model, past)).logits
    return logits


# --- a prompt that never ends --------------------------------------------------------------------------------------


def test_a_prompt_that_is_shorter_than_promised_is_warned_of_once(model):
    past = cache(model, prompt_length=90)
    run(model, past, 20, 20)
    with pytest.warns(UserWarning, match=ONE_BY_ONE) as noted:
        run(model, past, 1, 1, 5, 1)
    assert len(noted) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(model, copy.deepcopy(past), 5, 1)
    with pytest.warns(UserWarning, match=ONE_BY_ONE):
        model.generate(prompt(length=N), past_key_values=cache(model, prompt_length=90), **GREEDY)


def test_a_reset_cache_counts_and_warns_anew(model):
    past = cache(model, prompt_length=90)
    for _ in range(2):
        with pytest.warns(UserWarning, match=ONE_BY_ONE):
            run(model, past, 20, 20, 1)
        run(model, past, 49)
        assert past.stats().compress_seconds > 0
        past.reset()
        assert past.stats().compress_seconds == 0


@pytest.mark.parametrize("chunks", [[N], [N - 1, 1], [1] * N, [13, 13, 13, 1], [7, N - 7, 1, 1, 1], [1, N - 1, 1]])
def test_prompts_that_arrive_as_promised_are_not_warned_of(model, chunks):
    past = cache(model, prompt_length=N)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(model, past, *chunks)
    assert past.compressed_layers()[0].compressed


def test_assisted_decoding_is_not_warned_of(model):
    assistant = build("llama", seed=1, num_hidden_layers=1)
    ids = prompt(length=N // 2).repeat(1, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        for options in ({"assistant_model": assistant}, {"prompt_lookup_num_tokens": 3}):
            model.generate(ids, past_key_values=cache(model, prompt_length=N), **options, **GREEDY)


# --- numbers that are none -----------------------------------------------------------------------------------------

NONE_OF_TOKENS = [0, -3, 1.5, 2.0, True, False, "8", float("nan"), np.float32(2), np.bool_(True), np.int64(0), [4]]


@pytest.mark.parametrize("number", NONE_OF_TOKENS, ids=repr)
def test_numbers_of_tokens_that_are_none(model, number):
    method = winnow.method("snapkv", 12)
    with pytest.raises(CacheError, match=r"prompt_length is .*whole number"):
        winnow.CompressedCache(model, method, prompt_length=number)
    with pytest.raises(MethodError, match=r"fold_every is .*whole number"):
        winnow.CompressedCache(model, method, fold_every=number)
    with pytest.raises(CacheError, match=r"chunk_size is .*whole number"):
        winnow.compress(model, prompt(), method, chunk_size=number)
    with pytest.raises(CacheError, match=r"prompt_length is .*whole number"):
        cache(model, prompt_length=N).extended(number)


@pytest.mark.parametrize("kind", [int, np.int8, np.uint16, np.int64])
def test_integers_of_any_type(model, kind):
    past = winnow.CompressedCache(model, winnow.method("snapkv", 12), prompt_length=kind(20), fold_every=kind(5))
    run(model, past, 20, *[1] * 12)
    assert past.stats().tail_tokens == [2]
    assert winnow.compress(model, prompt(), winnow.method("snapkv", 12), chunk_size=kind(7)).stats().tokens_seen == 40


# --- another model -------------------------------------------------------------------------------------------------


def test_another_model_of_the_same_shape(model):
    past, plain = cache(model), cache(model)
    logits = [run(model, each, N) for each in (past, plain)]
    for other in (made(seed=3), copy.deepcopy(model)):
        with pytest.raises(CacheError, match="of another model"):
            run(other, past, 1)
        with pytest.raises(CacheError, match="of another model"):
            other.generate(prompt(length=N + 1), past_key_values=past, pad_token_id=0, **GREEDY)
    logits = [run(model, each, 1) for each in (past, plain)]
    assert torch.equal(*logits)


def test_a_prompt_through_another_model(model):
    with pytest.raises(CacheError, match="of another model"):
        run(made(seed=3), cache(model), N)


def test_a_loaded_context_and_another_model(model, saved):
    context = winnow.load_context(saved, model)
    with pytest.raises(CacheError, match="of another model"):
        run(made(), context.cache(), 1)
    run(model, context.cache(), 1)


OTHERS = {
    "more layers": {"num_hidden_layers": 5},
    "fewer layers": {"num_hidden_layers": 2},
    "more heads": {"num_key_value_heads": 4},
    "fewer heads": {"num_key_value_heads": 1},
    "wider heads": {"head_dim": 32},
    "narrower heads": {"head_dim": 8},
}


@pytest.mark.parametrize("difference", OTHERS)
def test_a_model_of_another_shape(model, difference):
    other, past, plain = made(**OTHERS[difference]), cache(model), cache(model)
    with pytest.raises(CacheError, match=r"model"):
        run(other, cache(model), N)
    for each in (past, plain):
        run(model, each, N)
    for sizes in ((1,), (3,)):
        with pytest.raises(CacheError, match="another model"):
            run(other, past, *sizes)
    assert torch.equal(run(model, past, 1), run(model, plain, 1))


class Adapted(nn.Linear):
    """A projection with an adapter, as wrappers put into a model."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__(base.in_features, base.out_features, bias=False)
        self.base = base

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.base(hidden) + super().forward(hidden) * 0.1


class Wrapper(nn.Module):
    """A model in a wrapper that forwards everything else."""

    def __init__(self, model) -> None:
        super().__init__()
        self.base = model

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("base"), name)

    def forward(self, *args, **kwargs):
        return self.base(*args, **kwargs)


def test_wrapped_and_adapted_models_are_the_same_model():
    base = made()
    base.generation_config.pad_token_id = 0
    for layer in base.model.layers:
        layer.self_attn.q_proj = Adapted(layer.self_attn.q_proj)
    wrapped = Wrapper(base)
    expected = base.generate(prompt(length=N), past_key_values=cache(base), **GREEDY)
    for made_of, called in ((wrapped, base), (base, wrapped), (wrapped, wrapped)):
        past = cache(made_of)
        run(called, past, N)
        assert torch.equal(run(base, past, 1), run(base, prefilled(base), 1))
    assert torch.equal(wrapped.generate(prompt(length=N), past_key_values=cache(wrapped), **GREEDY), expected)


def prefilled(model):
    past = cache(model)
    run(model, past, N)
    return past


# --- copies and pickles --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "write",
    [pickle.dumps, lambda each: torch.save(each, BytesIO()), lambda each: torch.save({"cache": [each]}, BytesIO())],
    ids=["pickle", "torch.save", "torch.save, inside"],
)
def test_pickling_says_what_to_do_instead(model, context, write):
    for each in (context, context.cache(), cache(model)):
        with pytest.raises(CacheError, match=r"context\.save\(path\).*load_context"):
            write(each)


def test_copies(model, context):
    with pytest.raises(CacheError, match=r"copy\.deepcopy"):
        copy.copy(context.cache())
    for twin in (copy.copy(context), copy.deepcopy(context)):
        assert torch.equal(twin.input_ids, context.input_ids)
        assert torch.equal(run(model, twin.cache(), 1, 1), run(model, context.cache(), 1, 1))
        assert twin.stats() == context.stats()
    past = context.cache()
    run(model, past, 1)
    fork = copy.deepcopy(past)
    run(model, fork, 1)
    assert (past.get_seq_length(), fork.get_seq_length()) == (N + 1, N + 2)


# --- NaN and infinity ----------------------------------------------------------------------------------------------

BROKEN = {"NaN": float("nan"), "infinity": float("inf")}


@pytest.mark.parametrize("number", BROKEN)
@pytest.mark.parametrize("projection", ["k_proj", "v_proj"])
@pytest.mark.parametrize("name", ["snapkv", "streamingllm", "random", "knorm", "full", "snapkv+bits(4)"])
def test_weights_that_are_no_numbers(name, projection, number):
    model = made()
    getattr(model.model.layers[1].self_attn, projection).weight.data[3, 5] = BROKEN[number]
    method = winnow.method(name) if name.startswith("full") else winnow.method(name, 12)
    with pytest.raises(ModelError, match=f"{(projection[0] == 'k' and 'keys') or 'values'} of layer 1 hold NaN"):
        winnow.compress(model, prompt(), method)


def test_queries_that_are_no_numbers_and_layers_by_their_own_number():
    model = made("gemma2")
    model.model.layers[3].self_attn.q_proj.weight.data[3, 5] = float("nan")
    with pytest.raises(ModelError, match="queries of layer 3 hold NaN"):
        winnow.compress(model, prompt(), winnow.method("snapkv", 12))


def test_a_tail_that_is_no_number_is_not_folded(model):
    past = winnow.CompressedCache(model, winnow.method("streamingllm", 12), fold_every=2)
    run(model, past, N, 1, 1)
    past.compressed_layers()[2].tail.values[0, 1, 0, 3] = float("inf")
    with pytest.raises(ModelError, match="values of layer 2"):
        run(model, past, 1)


def test_numbers_that_overflow_half_precision():
    model = made().half()
    model.model.layers[2].self_attn.k_proj.weight.data.mul_(1e6)
    with pytest.raises(ModelError, match="keys of layer 2 hold NaN or infinite"):
        winnow.compress(model, prompt(), winnow.method("streamingllm", 12))


def test_large_numbers_are_numbers():
    """A sum of them overflows."""
    model = made()
    model.model.layers[1].self_attn.v_proj.weight.data.mul_(1e37)
    winnow.compress(model, prompt(), winnow.method("streamingllm", 40))


def test_padding_may_be_anything(model):
    ids, mask = prompt(rows=2, length=N), torch.ones(2, N, dtype=torch.int64)
    mask[0, :9] = 0
    embed = model.get_input_embeddings()(ids).detach()
    embed[0, :9] = float("nan")
    past = cache(model)
    with torch.no_grad():
        logits = model(inputs_embeds=embed, attention_mask=mask, past_key_values=past).logits
    assert bool(logits[:, -1].isfinite().all())
