"""The warning where a model does not know the words of a text, by every command that reads one."""

from __future__ import annotations

import copy
import json
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.asked import QUESTION, write_asked
from winnow.bundled import DOCUMENT_PATH
from winnow.commands.vocabulary import FOREIGN, unknown_share
from winnow.tasks import vocabulary

pytestmark = pytest.mark.usefixtures("one_thread")

FOREIGN_TEXT = "Quarterly revenue of the subsidiary exceeded every forecast, and its board resigned."
REMEDY = "--model Qwen/Qwen2.5-0.5B-Instruct"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A document that the bundled model knows the words of, and one that it does not."""
    folder = tmp_path_factory.mktemp("vocabulary")
    write_asked(folder)
    (folder / "foreign.txt").write_text(FOREIGN_TEXT, encoding="utf-8")
    return folder


def asked(document, question, *more):
    return ("run", "--document", document, "--question", question, "--max-new-tokens", "2", *more)


SAID = {
    "known": (asked("document.txt", QUESTION.text), []),
    "a foreign document": (asked("foreign.txt", QUESTION.text), ["the document"]),
    "a foreign question": (asked("document.txt", "Who signed the contract?"), ["the question"]),
    "both": (asked("foreign.txt", "Who signed it?", "--json"), ["the document", "the question"]),
    "inspected": (("inspect", "--document", "foreign.txt", "--method", "streamingllm"), ["the document"]),
    "the bundled document": (("inspect", "--method", "streamingllm"), []),
    "compressed": (("compress", "foreign.txt", "-o", "foreign.safetensors", "--force"), ["the document"]),
}


@pytest.mark.parametrize("case", SAID)
def test_foreign_texts_are_named_in_one_line_and_answered(winnow_run, monkeypatch, case):
    monkeypatch.setattr("winnow.commands.inspect.draw_pictures", lambda *_: [])
    arguments, named = SAID[case]
    code, out, err = winnow_run(*arguments)
    assert (code, bool(out)) == (0, True)
    assert err.count("\n") == bool(named), err
    assert all(f"of the words of {name}" in err for name in named)
    assert err.count("%") == len(named)
    assert (REMEDY in err) == bool(named)


def test_ask_warns_of_the_document_or_of_each_question(winnow_run):
    for document, warnings in (("foreign.txt", ["the document"]), ("document.txt", ["the question"] * 2)):
        context = f"{document}.safetensors"
        assert winnow_run("compress", document, "-o", context, "--force")[0] == 0
        code, _, err = winnow_run("ask", context, "Who signed it?", QUESTION.text, "And why, pray?")
        assert code == 0, err
        assert [line.partition("of the words of ")[2].split(",")[0] for line in err.splitlines()] == warnings


def test_texts_of_a_batch_are_named_by_their_lines(winnow_run, folder):
    lines = [
        {"question": QUESTION.text},
        {"question": QUESTION.text, "document": "foreign.txt"},
        {"question": "Who signed it?"},
        {"question": "Who resigned?"},
    ]
    (folder / "batch.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    ask = ("run", "--batch", "batch.jsonl", "--document", "document.txt", "--max-new-tokens", "1", "--json")
    code, out, err = winnow_run(*ask)
    assert (code, len(out.splitlines())) == (0, 4)
    assert "the document of batch.jsonl, line 2 and 33% of the words of the question of batch.jsonl, line 3" in err
    assert "many of 1 more texts" in err


def test_documents_of_the_bundled_model_are_known(tokenizer):
    assert unknown_share(tokenizer, DOCUMENT_PATH.read_text(encoding="utf-8")) == 0
    assert unknown_share(tokenizer, "") == unknown_share(tokenizer, "?! …") == 0
    assert unknown_share(tokenizer, FOREIGN_TEXT) > FOREIGN


known = st.sampled_from([*vocabulary.NAMES, *vocabulary.PLACES, *vocabulary.DAYS])
# No word of the vocabulary ends so.
strange = st.text(string.ascii_letters, min_size=1, max_size=8).map(lambda letters: f"{letters}qqq")


@given(st.lists(st.tuples(st.booleans(), known, strange, st.sampled_from([" ", ", ", ".\n"])), min_size=1))
def test_the_share_counts_words_as_often_as_they_occur(tokenizer, drawn):
    text = "".join((known if knows else strange) + mark for knows, known, strange, mark in drawn)
    expected = sum(not knows for knows, *_ in drawn) / len(drawn)
    assert unknown_share(tokenizer, text) == pytest.approx(expected)


def test_a_tokenizer_without_unknown_tokens_knows_everything(tokenizer):
    spelling = copy.deepcopy(tokenizer)
    spelling.unk_token = None
    assert unknown_share(spelling, FOREIGN_TEXT) == 0
