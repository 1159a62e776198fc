"""Texts as sentences."""

from __future__ import annotations

from winnow.tasks.haystack.splitting import split_sentences


def test_sentences_of_a_text():
    text = 'One is 3.5 long. "Two?" Three!\nfour goes\n on. \n\n Title\n\nFive'
    assert split_sentences(text) == ["One is 3.5 long.", '"Two?"', "Three!", "four goes on.", "Title", "Five"]
    assert split_sentences("一。二！三") == ["一。", "二！", "三"]
