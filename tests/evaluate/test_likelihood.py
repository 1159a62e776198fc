"""Tokens of continuations."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from winnow.evaluate.likelihood import continuation_tokens

LETTERS = [chr(code) for code in range(ord("A"), ord("z") + 1) if chr(code).isalpha()]


def tokenizer_of(
    merges: list[tuple[str, str]], normalizer: object = None, splitter: object = None
) -> PreTrainedTokenizerFast:
    """A tokenizer of letters with a few tokens more."""
    tokens = ["<unk>", *sorted({*"▁Ġ:.?)\nĊ ", *LETTERS}), *(first + second for first, second in merges)]
    made = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges, unk_token="<unk>"))
    if normalizer is not None:
        made.normalizer = normalizer
    if splitter is not None:
        made.pre_tokenizer = splitter
    made.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>")


def tokens(tokenizer: PreTrainedTokenizerFast, text: str) -> list[str]:
    return tokenizer.convert_ids_to_tokens(continuation_tokens(tokenizer, text).tolist())


@pytest.fixture(scope="module")
def prepending() -> PreTrainedTokenizerFast:
    """As Llama 2's and Mistral's: a blank comes before whatever is first."""
    blanks = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return tokenizer_of([("▁", letter) for letter in LETTERS], blanks)


@pytest.mark.parametrize("text", [" A", " Paris", "A", " two words"])
def test_a_choice_has_the_tokens_that_follow_the_prompt(prepending: PreTrainedTokenizerFast, text: str) -> None:
    cue = "Which one?\nAnswer:"
    whole = prepending(cue + text, add_special_tokens=False).input_ids
    before = prepending(cue, add_special_tokens=False).input_ids
    assert continuation_tokens(prepending, text).tolist() == whole[len(before) :]


def test_no_blank_comes_before_a_continuation(prepending: PreTrainedTokenizerFast) -> None:
    assert tokens(prepending, " A") == ["▁A"]
    assert tokens(prepending, "A") == ["A"]


def test_texts_without_such_blanks_are_cut_as_on_their_own() -> None:
    plain = tokenizer_of([("Ġ", "A")], splitter=pre_tokenizers.ByteLevel(add_prefix_space=False))
    assert tokens(plain, " A") == ["ĠA"]


def test_a_text_that_grows_together_with_the_words_before_it_keeps_its_beginning() -> None:
    joined = tokenizer_of([(":", ")")])
    assert tokens(joined, ")A") == [")", "A"]
    both = tokenizer_of([(":", "\n"), ("\n", "\n")])
    assert tokens(both, "\nA") == ["\n", "A"]
