"""`winnow chat`: turns, commands, and everything that ends them."""

from __future__ import annotations

import io
import re
from itertools import repeat
from types import SimpleNamespace

import pytest
from rich.console import Console

from support.asked import DOCUMENT, write_asked
from support.days import dated_model, set_clocks_of_templates
from winnow.cli import main
from winnow.commands import chat, chat_lines
from winnow.evaluate import conversation

pytestmark = pytest.mark.usefixtures("one_thread")

QUESTIONS = [question.text for question in DOCUMENT.questions]
ANSWERS = [question.answer for question in DOCUMENT.questions]
CHAT = ("chat", "--document", "document.txt", "--max-new-tokens", "16", "--method", "adakv")
BLIND = "whatever later questions need"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A document, its context, and one that is too long."""
    folder = tmp_path_factory.mktemp("chat")
    write_asked(folder)
    out = str(folder / "c.safetensors")
    assert main(["compress", str(folder / "document.txt"), "-o", out, "--method", "adakv"]) == 0
    return folder


@pytest.fixture
def said(winnow_run, monkeypatch):
    """Runs a chat with lines from a pipe; returns code, the lines printed, standard error."""

    def run(arguments, *lines):
        given = "\n".join(lines).encode()
        monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(given), isatty=lambda: False))
        code, out, err = winnow_run(*arguments)
        return code, out.splitlines(), err

    return run


def after(lines, line):
    """The line printed after a line that was given, when it was given last."""
    return lines[len(lines) - lines[::-1].index(f"> {line}")]


def test_questions_are_answered_in_turn(said):
    code, lines, err = said((*CHAT, "--method", "full"), *QUESTIONS)
    assert (code, err) == (0, "")
    assert [after(lines, question) for question in QUESTIONS] == ANSWERS
    assert "document: " in lines[0]


def test_a_document_is_compressed_for_any_question_unless_a_method_is_named(said):
    code, lines, err = said(CHAT[:-2], QUESTIONS[0])
    assert (code, err) == (0, "")
    assert "kvzip @ 25%" in lines[0]
    assert "adakv @ 128" in said((*CHAT[:1], *CHAT[3:5]), QUESTIONS[0])[1][0]
    assert not any(BLIND in line for line in lines)
    _, lines, _ = said((*CHAT, "--method", "expectedattention+ada"), QUESTIONS[0])
    assert not any(BLIND in line for line in lines)
    _, lines, _ = said(CHAT, QUESTIONS[0])
    assert f"adakv: keeps what the end of the document attends to, {BLIND}" in lines[1]


def test_the_conversation_and_a_context_from_a_file_are_one_and_the_same(said):
    _, here, _ = said((*CHAT, "--fold", "0"), *QUESTIONS)
    code, there, err = said(("chat", "--context", "c.safetensors", "--max-new-tokens", "16"), *QUESTIONS)
    assert (code, err) == (0, "")
    assert [after(there, question) for question in QUESTIONS] == [after(here, question) for question in QUESTIONS]
    assert "as contexts from files cannot be compressed again: memory grows" in there[1]
    assert "as --fold 0 says: memory grows" in here[2]


def test_a_chat_goes_on_at_midnight(said, monkeypatch, tmp_path):
    def load_until_tomorrow(*arguments):
        set_clocks_of_templates(monkeypatch, repeat(1))
        return load(*arguments)

    load = chat.load
    monkeypatch.setattr(chat, "load", load_until_tomorrow)
    code, lines, err = said((*CHAT, "--model", str(dated_model(tmp_path / "dated"))), *QUESTIONS[:2])
    assert (code, err) == (0, "")
    assert all(after(lines, question) for question in QUESTIONS[:2])


def test_stats_count_what_is_held(said):
    code, lines, err = said(CHAT, "/stats", QUESTIONS[0], QUESTIONS[1], "/stats")
    assert (code, err) == (0, "")
    first, last = lines.index("> /stats"), len(lines) - lines[::-1].index("> /stats") - 1
    assert "turns so far: 0" in lines[first + 1]
    assert "turns so far: 2" in lines[last + 1]
    assert "compressed again every 128 tokens" in lines[last + 1]
    assert all(part in lines[last + 2] for part in ("compressed: ", "dense: ", "room for more: ", "other: "))
    held, more = (int(lines[at + 3].split(" for ")[1].split(" tokens")[0]) for at in (first, last))
    assert 150 < held < more


def test_another_method_reads_document_and_conversation_again(said):
    lines_given = (
        QUESTIONS[0],
        "/method",
        "/method full",
        "/stats",
        QUESTIONS[1],
        "/method keydiff",
        "/method tova @ 40",
    )
    code, lines, err = said(CHAT, *lines_given)
    assert (code, err) == (0, "")
    assert after(lines, "/method") == "adakv @ 128"
    assert after(lines, "/method full") == "full"
    assert "turns so far: 1" in after(lines, "/stats")
    assert "memory grows with every token" in after(lines, "/stats")
    assert after(lines, QUESTIONS[1]) == ANSWERS[1]
    assert after(lines, "/method keydiff") == "keydiff @ 128"
    assert after(lines, "/method tova @ 40") == "tova @ 40"


def test_reset_forgets_all_but_the_document(said):
    code, lines, err = said(CHAT, QUESTIONS[0], "/reset", "/stats", QUESTIONS[0])
    assert (code, err) == (0, "")
    assert "turns so far: 0" in after(lines, "/stats")
    answers = [lines[at + 1] for at, line in enumerate(lines) if line == f"> {QUESTIONS[0]}"]
    assert answers[0] == answers[1]


def test_help_and_quit(said):
    code, lines, err = said(CHAT, "/help", "/quit", QUESTIONS[0])
    assert (code, err) == (0, "")
    assert any(line.startswith("/stats") for line in lines)
    assert f"> {QUESTIONS[0]}" not in lines


def test_without_a_document(said):
    code, lines, err = said(("chat", "--max-new-tokens", "3"), f"{DOCUMENT.text} {QUESTIONS[0]}", "/stats")
    assert (code, err) == (0, "")
    assert "compressed again every 128 tokens" in after(lines, "/stats")


def test_a_long_conversation_stays_within_the_budget(said):
    code, lines, err = said((*CHAT, "--budget", "32", "--fold", "16"), *QUESTIONS * 4, "/stats")
    assert (code, err) == (0, "")
    share = float(lines[-1].split(", ")[1].split("%")[0])
    _, grown, _ = said((*CHAT, "--budget", "32", "--fold", "0"), *QUESTIONS * 4, "/stats")
    assert share < float(grown[-1].split(", ")[1].split("%")[0]) / 1.5


def test_a_share_is_one_of_the_conversation(said):
    """A second text of as many tokens as the document gets as many slots."""

    def compressed(*lines):
        code, found, err = said((*CHAT, "--max-new-tokens", "1", "--budget", "20%"), *lines)
        assert (code, err) == (0, "")
        return float(re.search(r"compressed: ([\d.]+) KiB", "\n".join(found))[1])

    once = compressed(QUESTIONS[0], "/stats")
    assert 1.6 < compressed(QUESTIONS[0] + " " + DOCUMENT.text.replace("\n", " "), "/stats") / once < 2.2


def test_drawn_answers_are_drawn_again_with_the_seed(said):
    drawn = (*CHAT, "--temperature", "5", "--seed", "4")
    one, two = (said(drawn, *QUESTIONS[:2])[1] for _ in range(2))
    assert one == two
    assert after(one, QUESTIONS[0]) != ANSWERS[0]


def test_unknown_words_are_warned_of(said):
    code, _, err = said(CHAT, "Wherefore sayest thou zounds?")
    assert (code, "does not know" in err) == (0, True)


WRONG_USAGE = {
    "an unknown method": ((*CHAT, "--method", "adakvv"), "did you mean 'adakv'"),
    "a document that is no file": (("chat", "--document", "-"), "standard input is for your questions"),
    "a share of nothing": (("chat", "--budget", "2%"), "without a --document"),
    "two documents": (("chat", "--context", "c.safetensors", "--document", "document.txt"), "--document"),
    "two budgets": (("chat", "--context", "c.safetensors", "--budget", "64"), "--budget"),
    "two dtypes": (("chat", "--context", "c.safetensors", "--dtype", "bfloat16"), "--dtype"),
    "two types of weights": (("chat", "--context", "c.safetensors", "--weights", "int8"), "--weights"),
    "two methods": (("chat", "--context", "c.safetensors", "--method", "adakv"), "--method"),
    "a method that cannot fold": ((*CHAT, "--method", "snapkv+kivi", "--fold", "8"), "leave fold_every out"),
    "bytes that hold nothing": ((*CHAT, "--budget", "2KiB"), "bytes"),
    "no head scores of this model": (("chat", "--method", "snapkv+headkv"), "head scores"),
    "top-p without temperature": ((*CHAT, "--top-p", "0.5"), "--temperature"),
}


@pytest.mark.parametrize("case", WRONG_USAGE)
def test_wrong_usage_is_one_line_and_code_2(said, no_weights, case):
    arguments, expected = WRONG_USAGE[case]
    code, lines, err = said(arguments, "Why?")
    assert (code, lines) == (2, [])
    assert expected in err
    assert err.count("\n") == 1, err


UNUSABLE = {
    "no document": (("chat", "--document", "nowhere.txt"), "no file nowhere.txt"),
    "a long document": (("chat", "--document", "long.txt"), "at most"),
    "no context": (("chat", "--context", "document.txt"), "is not a context"),
}


@pytest.mark.parametrize("case", UNUSABLE)
def test_what_cannot_be_used_is_one_line_and_code_1(said, no_weights, case):
    arguments, expected = UNUSABLE[case]
    code, lines, err = said(arguments, "Why?")
    assert (code, lines) == (1, [])
    assert expected in err
    assert err.count("\n") == 1, err


def test_in_a_pipe_errors_end_the_chat(said):
    code, lines, err = said(CHAT, "/stop", QUESTIONS[0])
    assert (code, lines[-1]) == (1, "> /stop")
    assert "There is no command /stop" in err


def test_a_conversation_that_the_model_cannot_read(said):
    question = " ".join(DOCUMENT.text.split()[:100] * 50)
    code, _, err = said(CHAT, question)
    assert code == 1
    assert "forget the conversation so far with /reset" in err
    assert err.count("\n") == 1, err


@pytest.mark.parametrize("method", ["full+bits(4)", "full+kivi"])
def test_a_packed_cache_that_evicts_nothing_folds(said, method):
    folded = said((*CHAT, "--method", method, "--fold", "16"), *QUESTIONS * 3, "/stats")
    grown = said((*CHAT, "--method", method, "--fold", "0"), *QUESTIONS * 3, "/stats")
    by_default = said((*CHAT, "--method", method), "/stats")
    assert [(code, err) for code, _, err in (folded, grown, by_default)] == [(0, "")] * 3
    assert "compressed again every 16 tokens" in after(folded[1], "/stats")
    assert "compressed again every 128 tokens" in after(by_default[1], "/stats")
    shares = [float(lines[-1].split(", ")[1].split("%")[0]) for _, lines, _ in (folded, grown)]
    assert shares[0] < shares[1] / 1.5
    assert "keeps every token" in said((*CHAT, "--method", "full", "--fold", "16"), "Why?")[2]


def test_methods_that_cannot_fold_say_so(said):
    code, lines, err = said((*CHAT, "--method", "snapkv+kivi"), QUESTIONS[0])
    assert (code, err) == (0, "")
    assert "snapkv+kivi cannot compress it: memory grows" in lines[2]


def test_an_interrupt_ends_a_chat_in_a_pipe(said, monkeypatch):
    monkeypatch.setattr(conversation, "decode", interrupted_after(2))
    code, lines, err = said(CHAT, *QUESTIONS)
    assert (code, err) == (130, "Interrupted.\n")
    assert lines[-2] == f"> {QUESTIONS[0]}"
    assert len(lines[-1].split()) == 2


def interrupted_after(count):
    decode = conversation.decode

    def interrupted(model, cache, logits, most, stops, *others):
        for number, token in enumerate(decode(model, cache, logits, most, frozenset(), *others)):
            if number == count:
                raise KeyboardInterrupt
            yield token

    return interrupted


@pytest.fixture
def typed(winnow_run, monkeypatch):
    """Runs a chat on a terminal: what is typed is text, or an exception for a key; returns code and screen."""

    def run(arguments, *entries):
        shown, coming = io.StringIO(), iter(entries)
        console = Console(file=shown, force_terminal=True, color_system=None, highlight=False, width=200)

        def read(_):
            entry = next(coming, EOFError())
            if isinstance(entry, BaseException):
                raise entry
            return entry

        monkeypatch.setattr("builtins.input", read)
        monkeypatch.setattr(chat, "on_terminal", lambda: True)
        for module in (chat, chat_lines):
            monkeypatch.setattr(module, "output", lambda: console)
            monkeypatch.setattr(module, "messages", lambda: console)
        code, _, err = winnow_run(*arguments)
        assert not err
        return code, shown.getvalue()

    return run


def test_on_a_terminal_errors_and_interrupts_end_a_turn_only(typed):
    code, screen = typed(CHAT, KeyboardInterrupt(), "  ", "/stop", "half\ud800", "/help", "/stats")
    assert code == 0
    for expected in ("Ctrl-D or /quit ends", "no command /stop", "not UTF-8", "/reset ", "held: "):
        assert expected in screen
    assert "> " not in screen


def test_ctrl_c_stops_an_answer_and_not_the_chat(typed, monkeypatch):
    whole = typed((*CHAT, "--method", "full"), *QUESTIONS[:2])[1]
    with monkeypatch.context() as patched:
        patched.setattr(conversation, "decode", interrupted_after(2))
        code, screen = typed(CHAT, QUESTIONS[0], "/stats")
    assert code == 0
    lines = screen.splitlines()
    stopped = lines.index("Stopped.")
    assert lines[stopped - 1] == " ".join(whole.splitlines()[2].split()[:2])
    assert "turns so far: 1" in lines[stopped + 1]


def test_what_stops_while_it_is_read_was_never_asked(typed, monkeypatch):
    def stopped(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(conversation, "prefill", stopped)
    code, screen = typed(CHAT, QUESTIONS[0], "/stats")
    assert code == 0
    assert "Stopped." in screen
    assert "turns so far: 0" in screen
