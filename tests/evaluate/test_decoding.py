"""Greedy decoding by hand against generate(), and its end."""

from __future__ import annotations

import pytest

import winnow
from support.asked import encoded
from winnow.evaluate.decoding import decode, prefill, stop_tokens

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("name", ["full", "adakv"])
def test_greedy_decoding_is_what_generate_does(model, source, name):
    method = winnow.method(name, None if name == "full" else 24)
    ids = encoded(source)
    expected = model.generate(
        ids, past_key_values=winnow.CompressedCache(model, method), max_new_tokens=12, do_sample=False
    )
    cache = winnow.CompressedCache(model, method)
    tokens = list(decode(model, cache, prefill(model, ids, cache), 12, stop_tokens(model)))
    new = expected[0, ids.shape[1] :].tolist()
    assert tokens == [token for token in new if token not in stop_tokens(model)]


def test_decoding_stops_at_a_stop_token_and_at_the_limit(model, source):
    ids = encoded(source)
    cache = winnow.CompressedCache(model, winnow.method("full"))
    free = list(decode(model, cache, prefill(model, ids, cache), 5, frozenset()))
    assert len(free) == 5
    assert cache.get_seq_length() == ids.shape[1] + 4
    cache = winnow.CompressedCache(model, winnow.method("full"))
    assert list(decode(model, cache, prefill(model, ids, cache), 5, frozenset(free[:1]))) == []


def test_every_token_that_the_model_names_ends_an_answer(model, monkeypatch):
    monkeypatch.setattr(model.generation_config, "eos_token_id", [5, 7])
    assert stop_tokens(model) == {5, 7}
