"""Tokens of continuations, and how likely they are."""

from __future__ import annotations

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import winnow
from support.families import STARTING_ANEW, build, prompt
from winnow.evaluate.batch import AnswerStart
from winnow.evaluate.likelihood import continuation_tokens, log_probabilities
from winnow.evaluate.shared import DenseReader

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


@pytest.mark.parametrize("family", ["llama", *STARTING_ANEW])
def test_probabilities_are_those_of_a_plain_pass(family: str) -> None:
    """In models, too, that go on from their states token by token only."""
    model = build(family, **STARTING_ANEW.get(family, {}))
    model.set_attn_implementation("winnow")
    ids, continuation = prompt(length=40), torch.tensor([5, 6, 7, 8])
    dense = DenseReader(model, [winnow.method("full")]).read(ids)
    start = AnswerStart(dense.compress(winnow.method("full")).cache, dense.logits)
    found = log_probabilities(model, start, continuation)
    with torch.no_grad():
        expected = model(torch.cat([ids, continuation[None]], dim=1)).logits[0, -5:-1].log_softmax(-1)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
