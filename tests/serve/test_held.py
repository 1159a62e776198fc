"""Conversations that are kept: the longest that a text goes on with, forks of it, and bounds."""

from __future__ import annotations

import pytest
import torch

import winnow
from support.families import prompt
from support.small_caches import made
from winnow.serve.held import Held, HeldConversations, _goes_on


@pytest.fixture(scope="module")
def cache():
    model = made()
    cache = winnow.CompressedCache(model, "full")
    with torch.no_grad():
        model(prompt(length=8), past_key_values=cache)
    return cache


def conversation(text, cache, nbytes=1):
    return Held(text, list(range(len(text))), cache, nbytes)


def test_the_longest_that_a_text_goes_on_with(cache):
    held = HeldConversations(9)
    for text in ("a.", "a.b.c.", "a.b.", "a.b.x"):
        held.keep("m", conversation(text, cache))
    assert held.longest("m", "a.b.c.d").text == "a.b.c."
    assert held.longest("m", "a.b.c.").text == "a.b."
    assert held.longest("m", "a.") is None
    assert held.longest("m", "x") is None
    assert held.longest("other", "a.b.c.d") is None


def test_no_word_is_gone_on_with(cache):
    """An answer that was cut off within a word is no beginning of one that was not."""
    held = HeldConversations(9)
    held.keep("m", conversation("It is 12", cache))
    assert held.longest("m", "It is 123") is None
    assert held.longest("m", "It is 12.") is not None
    assert held.longest("m", "It is 12 or 3") is not None


def test_what_is_found_is_a_fork(cache):
    held = HeldConversations(1)
    held.keep("m", conversation("ab", cache))
    first, second = held.longest("m", "ab c"), held.longest("m", "ab c")
    first.tokens.append(7)
    assert second.tokens == held.longest("m", "ab c").tokens == [0, 1]
    assert len({id(each.cache) for each in (first, second, held.longest("m", "ab c"))}) == 3


def test_the_one_that_was_not_gone_on_with_for_longest_goes(cache):
    held = HeldConversations(2)
    held.keep("m", conversation("a", cache))
    held.keep("m", conversation("b", cache))
    assert held.longest("m", "a a") is not None
    held.keep("m", conversation("c", cache))
    assert held.longest("m", "b b") is None
    assert held.longest("m", "a a") is not None
    assert len(held) == 2


def test_bytes_are_bounded(cache):
    held = HeldConversations(9, most_bytes=10)
    for text, nbytes in (("a", 4), ("b", 4), ("c", 4)):
        held.keep("m", conversation(text, cache, nbytes))
    assert (len(held), held.nbytes) == (2, 8)
    assert held.longest("m", "a a") is None
    held.keep("m", conversation("d", cache, 11))
    assert (len(held), held.nbytes) == (2, 8), "what can never be held takes nobody's place"


def test_the_same_conversation_is_kept_once(cache):
    held = HeldConversations(9)
    held.keep("m", conversation("a", cache))
    held.keep("m", conversation("a", cache))
    held.keep("other", conversation("a", cache))
    assert len(held) == 2
    held.forget()
    assert len(held) == 0


def test_none_is_kept_where_none_is_wanted(cache):
    held = HeldConversations(0)
    held.keep("m", conversation("a", cache))
    assert len(held) == 0


def test_nothing_goes_on_behind_nothing():
    assert not _goes_on("a", "")
    assert not _goes_on("", "")


def test_a_conversation_that_is_kept_again_is_the_latest(cache):
    held = HeldConversations(2)
    for text in ("a", "b", "a", "c"):
        held.keep("m", conversation(text, cache))
    assert held.longest("m", "a a") is not None
    assert held.longest("m", "b b") is None
