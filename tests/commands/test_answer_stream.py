"""Answers printed as they come, on a terminal."""

from __future__ import annotations

import io
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from support.asked import ASK_RUN, QUESTION, write_asked
from winnow.bundled import MODEL_PATH
from winnow.cli import main
from winnow.commands.answer_stream import AnswerStream
from winnow.evaluate import answering
from winnow.models import open_model

pytestmark = pytest.mark.usefixtures("one_thread")

TOKENIZER = open_model(MODEL_PATH).tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stream")
    write_asked(folder)
    return folder


@pytest.fixture(scope="module")
def context(folder):
    """The document's context, as a file."""
    out = str(folder / "c.safetensors")
    assert main(["compress", str(folder / "document.txt"), "-o", out]) == 0
    return out


@pytest.fixture
def screen(monkeypatch):
    """Standard output as a terminal without colors."""
    shown = io.StringIO()
    console = Console(file=shown, force_terminal=True, color_system=None, highlight=False, width=200)
    for command in ("run", "ask"):
        monkeypatch.setattr(f"winnow.commands.{command}.output", lambda: console)
    return shown


@pytest.fixture
def endless(monkeypatch):
    """Options for answers of twelve words; the bundled model's own are short."""
    monkeypatch.setattr(answering, "stop_tokens", lambda _: frozenset())
    return ("--max-new-tokens", "12", "--temperature", "5", "--seed", "1")


@given(st.text(alphabet="ab \n.,ñ", max_size=30))
@settings(max_examples=50, deadline=None)
def test_what_is_printed_is_the_answer_without_space_around_it(text):
    shown = io.StringIO()
    stream = AnswerStream(TOKENIZER, Console(file=shown, force_terminal=True, color_system=None, width=20))
    for start in range(0, len(text), 3):
        stream.on_finalized_text(text[start : start + 3])
    stream.on_finalized_text("", stream_end=True)
    assert shown.getvalue() == text.strip()


@pytest.mark.parametrize("command", ["run", "ask"])
def test_words_are_printed_as_they_come(winnow_run, screen, endless, monkeypatch, context, command):
    ask = ASK_RUN[:-2] if command == "run" else ("ask", context, QUESTION.text)
    whole = json.loads(winnow_run(*ask, *endless, "--json")[1])["answer"]
    decode, lengths = answering.decode, []

    def watched(*arguments):
        for token in decode(*arguments):
            yield token
            lengths.append(len(screen.getvalue()))

    monkeypatch.setattr(answering, "decode", watched)
    code, _, err = winnow_run(*ask, *endless)
    assert code == 0, err
    assert screen.getvalue().splitlines()[1] == f"  {whole}"
    assert len(set(lengths)) > 3


def test_methods_that_are_compared_are_named_before_their_answers(winnow_run, screen):
    code, _, err = winnow_run(*ASK_RUN, "--compare", "full")
    assert code == 0, err
    assert [line.split(":")[0] for line in screen.getvalue().splitlines()[1:3]] == ["  adakv @ 128", "  full"]


def test_an_interrupted_answer_stays_on_the_screen(winnow_run, screen, endless, monkeypatch):
    decode = answering.decode

    def interrupted(*arguments):
        for count, token in enumerate(decode(*arguments)):
            if count == 3:
                raise KeyboardInterrupt
            yield token

    code, _, _ = winnow_run(*ASK_RUN, *endless)
    whole = screen.getvalue()
    screen.seek(0)
    screen.truncate()
    monkeypatch.setattr(answering, "decode", interrupted)
    code, _, err = winnow_run(*ASK_RUN, *endless)
    assert (code, err) == (130, "Interrupted.\n")
    said = screen.getvalue()
    assert said.endswith("\n")
    last = said.splitlines()[-1]
    assert last.strip()
    assert whole.splitlines()[1].startswith(last)
    assert 3 <= len(last.split()) < len(whole.splitlines()[1].split())
