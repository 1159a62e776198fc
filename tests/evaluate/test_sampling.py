"""Tokens that are drawn, against generate() and against the definition."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

import winnow
from support.asked import encoded
from winnow.evaluate.decoding import decode, prefill, stop_tokens
from winnow.evaluate.sampling import GREEDY, Sampling, among, most_likely, most_likely_of_each

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (3.0, 1.0), (3.0, 0.8)])
def test_a_seed_draws_what_generate_draws(model, source, temperature, top_p):
    ids = encoded(source)
    method = winnow.method("adakv", 24)
    torch.manual_seed(7)
    expected = model.generate(
        ids,
        past_key_values=winnow.CompressedCache(model, method),
        max_new_tokens=12,
        do_sample=True,
        temperature=temperature,
        top_p=top_p,
        top_k=0,
    )
    cache = winnow.CompressedCache(model, method)
    choice = Sampling(temperature, top_p, seed=7).choice()
    tokens = list(decode(model, cache, prefill(model, ids, cache), 12, stop_tokens(model), choice))
    assert tokens == [t for t in expected[0, ids.shape[1] :].tolist() if t not in stop_tokens(model)]


@given(
    logits=st.lists(st.floats(-8, 8, width=32), min_size=1, max_size=9),
    temperature=st.floats(0.1, 10),
    top_p=st.floats(0.05, 1),
)
@settings(max_examples=60, deadline=None)
def test_only_the_likeliest_tokens_are_drawn(logits, temperature, top_p):
    choice = Sampling(temperature, top_p, seed=0).choice()
    shares = (torch.tensor(logits, dtype=torch.float64) / temperature).softmax(0).tolist()
    for _ in range(5):
        drawn = choice(torch.tensor(logits))
        # Those that are likelier do not make up the share yet, so this one is needed for it.
        assert sum(share for share in shares if share > shares[drawn]) < top_p + 1e-4


def test_temperature_zero_takes_the_most_likely_token():
    assert GREEDY.choice()(torch.tensor([0.0, 3.0, 2.9])) == 1


def test_without_a_seed_every_choice_is_another():
    even = torch.zeros(1000)
    first, second = (Sampling(1.0).choice() for _ in range(2))
    assert [first(even) for _ in range(8)] != [second(even) for _ in range(8)]


def test_the_seed_0_is_one():
    even = torch.zeros(1000)
    first, second = (Sampling(1.0, seed=0).choice() for _ in range(2))
    assert [first(even) for _ in range(5)] == [second(even) for _ in range(5)]


def test_the_global_random_numbers_are_left_alone():
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    Sampling(1.0, seed=5).choice()(torch.zeros(9))
    assert torch.equal(torch.rand(3), expected)


@given(st.floats(0, 1.7e308, exclude_min=True), st.floats(0, 1, exclude_min=True))
@example(5e-324, 5e-324)
@example(1.7e308, 1.0)
@settings(max_examples=60, deadline=None)
def test_any_temperature_and_share_draws_a_token(temperature, top_p):
    logits = torch.tensor([-300.0, 2.0, 2.5, 300.0])
    drawn = Sampling(temperature, top_p, seed=0).choice()(logits)
    assert drawn == 3 or temperature > 1


@given(
    logits=st.lists(st.floats(-8, 8, width=32), min_size=1, max_size=9),
    allowed=st.lists(st.booleans(), min_size=1, max_size=12),
    sampling=st.sampled_from([GREEDY, Sampling(1.0, seed=0), Sampling(3.0, 0.5, seed=0)]),
)
@settings(max_examples=60, deadline=None)
def test_only_what_is_allowed_is_chosen(logits, allowed, sampling):
    """As if there were no other tokens, of which the probabilities do not count either."""
    kept = [place for place in range(len(logits)) if allowed[place : place + 1] == [True]]
    assume(kept)
    before = torch.tensor(logits)
    chosen = among(sampling.choice(), lambda: torch.tensor(allowed))(before)
    assert chosen in kept
    if sampling == GREEDY:
        assert logits[chosen] == max(logits[place] for place in kept)
    else:
        left = torch.full((len(logits),), -torch.inf)
        left[kept] = before[kept]
        assert chosen == sampling.choice()(left)
    assert before.tolist() == logits


def test_what_is_allowed_is_asked_for_at_every_choice():
    masks = [[True, False], [False, True]]
    choice = among(GREEDY.choice(), lambda: torch.tensor(masks.pop(0)))
    assert [choice(torch.tensor([0.0, 1.0])) for _ in range(2)] == [0, 1]


@given(st.lists(st.sampled_from([-1.5, 0.0, 2.0, float("-inf"), float("nan")]), min_size=1, max_size=70))
def test_the_most_likely_token_is_the_first_of_several(numbers):
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        rows = torch.tensor([numbers, numbers[::-1]], dtype=dtype)
        assert torch.equal(most_likely_of_each(rows), rows.argmax(-1))
        assert most_likely(rows[0]) == int(rows[0].argmax())
