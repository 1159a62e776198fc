"""Pieces of texts with so many tokens, for tokenizers of words, of characters and of something between."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from winnow.tasks.texts.cutting import cut, last_start, word_after

COUNTS: list[Callable[[str], int]] = [len, lambda text: len(text.split()), lambda text: (len(text) + 3) // 4]
TEXTS = st.text(alphabet="ab \n中", max_size=200)


@pytest.mark.parametrize("count", COUNTS)
@given(text=TEXTS, start=st.integers(0, 200), tokens=st.integers(1, 100))
def test_a_piece_has_at_most_so_many_tokens(count: Callable[[str], int], text: str, start: int, tokens: int) -> None:
    start = min(start, len(text))
    end = cut(text, start, tokens, count)
    assert start <= end <= len(text)
    assert count(text[start:end]) <= tokens
    if count(text[start:]) > tokens:
        assert end < len(text)
        assert end > start
    else:
        assert end == len(text)


def test_pieces_end_before_words_and_the_next_begins_with_the_blank() -> None:
    text = "one two three  four five"
    assert text[: cut(text, 0, 2, lambda piece: len(piece.split()))] == "one two"
    assert text[: cut(text, 0, 3, lambda piece: len(piece.split()))] == "one two three"
    assert text[: cut(text, 0, 10, len)] == "one two"
    assert "天地玄黄宇宙"[: cut("天地玄黄宇宙", 0, 4, len)] == "天地玄黄"


@pytest.mark.parametrize("count", COUNTS)
@given(text=TEXTS, tokens=st.integers(1, 100))
def test_the_last_start_is_the_last_with_enough_behind_it(count: Callable[[str], int], text: str, tokens: int) -> None:
    place = last_start(text, tokens, count)
    enough = [start for start in range(len(text) + 1) if count(text[start:]) >= tokens]
    assert place == (enough[-1] if enough else None)


def test_pieces_begin_with_whole_words() -> None:
    text = "one two three"
    assert [word_after(text, place) for place in (0, 1, 4, 5, 9)] == [0, 4, 4, 8, 9]
    assert word_after("天地玄黄", 2) == 2
