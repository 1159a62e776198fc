"""Texts of answers while their tokens come, against the plain form: all of them decoded, cut, without space around."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from winnow.bundled import MODEL_PATH
from winnow.models import open_model
from winnow.serve.words import Words


def of_bytes():
    """A tokenizer like GPT-2's, in which every byte is a token, and a few words are."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {each: place for place, each in enumerate([*letters, "Ġt", "Ġth"])}
    made = Tokenizer(models.BPE(vocabulary, [("Ġ", "t"), ("Ġt", "h")]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=made)


def of_sentences():
    """A tokenizer like Llama's: space belongs to the token behind it, and rare characters are bytes."""
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *"abcdefgh.\n", "▁a", "▁b"]
    vocabulary = {each: place for place, each in enumerate(pieces)}
    merges = [("▁", "a"), ("▁", "b")]
    made = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>")


TOKENIZERS = {"bytes": of_bytes(), "sentences": of_sentences(), "bundled": open_model(MODEL_PATH).tokenizer}


def pieces_of(tokenizer, tokens, stops=(), behind=None):
    """Pieces that are told token by token, and True if a text ended them."""
    words = Words(tokenizer, stops, behind)
    pieces = []
    for token in tokens:
        pieces.append(words.add(token))
        if words.stopped:
            break
    return [*pieces, words.end()], words.stopped


def cut(text, stops):
    """A text before the stop that is complete first, and True if there is one."""
    ends = [(text.index(stop) + len(stop), text.index(stop)) for stop in stops if stop in text]
    return (text[: min(ends)[1]], True) if ends else (text, False)


def plain(tokenizer, tokens, stops):
    text, stopped = cut(tokenizer.decode(tokens, skip_special_tokens=True), stops)
    return text.strip(), stopped


TEXTS = st.text(st.sampled_from("ab \n.\tčé😀th"), max_size=24)
STOPS = st.lists(st.text(st.sampled_from("ab \n.č😀"), min_size=1, max_size=4), max_size=3)


@pytest.mark.parametrize("name", ["bytes", "sentences"])
@given(texts=st.lists(TEXTS, max_size=3), stops=STOPS)
def test_pieces_are_the_text(name, texts, stops):
    tokenizer = TOKENIZERS[name]
    tokens = [token for text in texts for token in tokenizer(text, add_special_tokens=False).input_ids]
    pieces, stopped = pieces_of(tokenizer, tokens, stops)
    assert ("".join(pieces), stopped) == plain(tokenizer, tokens, stops)


@given(st.lists(st.integers(0, len(TOKENIZERS["bundled"]) - 1), max_size=24), STOPS)
def test_pieces_are_the_text_of_any_tokens(tokens, stops):
    tokenizer = TOKENIZERS["bundled"]
    pieces, stopped = pieces_of(tokenizer, tokens, stops)
    assert ("".join(pieces), stopped) == plain(tokenizer, tokens, stops)


@given(st.lists(st.integers(0, 255), max_size=12))
def test_bytes_that_are_no_text_are_told_at_the_end(tokens):
    tokenizer = TOKENIZERS["bytes"]
    pieces, _ = pieces_of(tokenizer, tokens)
    assert "".join(pieces) == tokenizer.decode(tokens).strip()


@pytest.mark.parametrize("name", TOKENIZERS)
@given(before=TEXTS.filter(bool), after=TEXTS, stops=STOPS)
def test_a_text_that_goes_on_keeps_its_space(name, before, after, stops):
    tokenizer = TOKENIZERS[name]
    behind, tokens = (tokenizer(text, add_special_tokens=False).input_ids for text in (before, after))
    pieces, _ = pieces_of(tokenizer, tokens, stops, behind)
    whole = tokenizer.decode(behind + tokens, skip_special_tokens=True)
    begun = tokenizer.decode(behind, skip_special_tokens=True)
    assert "".join(pieces) == cut(whole[len(begun) :], stops)[0]


def test_a_text_is_told_as_soon_as_it_is_certain():
    tokenizer = TOKENIZERS["bytes"]
    words = Words(tokenizer, ["END"])
    told = [words.add(token) for letter in " aEN é" for token in tokenizer(letter, add_special_tokens=False).input_ids]
    assert told == ["", "a", "", "", "EN", "", " é"]
    assert words.end() == ""


def test_a_stop_across_tokens_and_words():
    tokenizer = TOKENIZERS["bytes"]
    tokens = tokenizer("a b c d", add_special_tokens=False).input_ids
    pieces, stopped = pieces_of(tokenizer, tokens, ["b c"])
    assert ("".join(pieces), stopped) == ("a", True)
    pieces, stopped = pieces_of(tokenizer, tokens, ["c d e"])
    assert ("".join(pieces), stopped) == ("a b c d", False)


def test_the_stop_that_is_complete_first_counts():
    tokenizer = TOKENIZERS["bytes"]
    tokens = tokenizer("abcdefgh", add_special_tokens=False).input_ids
    assert "".join(pieces_of(tokenizer, tokens, ["bcdefgh", "d"])[0]) == "abc"


def test_space_at_the_beginning_of_a_line_is_kept():
    for name in ("bytes", "sentences"):
        tokenizer = TOKENIZERS[name]
        tokens = tokenizer("a\n   b", add_special_tokens=False).input_ids
        assert "".join(pieces_of(tokenizer, tokens)[0]) == "a\n   b"


def test_a_special_token_is_told_apart():
    """It settles what is before it: bytes that are no character, and text that may be about to end the answer."""
    tokenizer = of_bytes()
    tokenizer.add_tokens([AddedToken("<|END|>", special=True)], special_tokens=True)
    words = Words(tokenizer, ["END", "aEx"], special=True)
    byte, a, e, x, mark = tokenizer.convert_tokens_to_ids(["Ã", "a", "E", "x", "<|END|>"])
    assert [words.add(token) for token in (byte, a, e)] == ["", "\N{REPLACEMENT CHARACTER}", ""]
    assert [words.end(), words.mark(mark), words.add(x)] == ["aE", "<|END|>", "x"]
    assert [words.add(byte), words.end(), words.mark(mark), words.end()] == [
        "",
        "\N{REPLACEMENT CHARACTER}",
        "<|END|>",
        "",
    ]
    assert not words.stopped


def test_nothing_is_told_behind_the_end():
    tokenizer = TOKENIZERS["bytes"]
    words = Words(tokenizer, ["a"])
    assert words.add(tokenizer("a").input_ids[0]) == ""
    assert words.stopped
    assert words.add(tokenizer("b").input_ids[0]) == ""
    assert words.end() == ""


def test_bytes_that_never_become_a_character_keep_nothing_back():
    """Only the last ones may still lack others."""
    tokenizer = TOKENIZERS["bytes"]
    odd, letter = tokenizer.convert_tokens_to_ids(["ÿ", "a"])
    words = Words(tokenizer)
    assert [words.add(token) for token in (odd, letter, letter)] == ["", "\N{REPLACEMENT CHARACTER}a", "a"]


def test_the_text_that_is_complete_first_ends_an_answer():
    """Not the one that begins first: both come in one token here."""
    tokenizer = TOKENIZERS["bundled"]
    (token,) = tokenizer("mango", add_special_tokens=False).input_ids[-1:]
    for stops in (("mango", "an"), ("an", "mango")):
        words = Words(tokenizer, stops)
        assert words.add(token) == "m"
        assert words.stopped
