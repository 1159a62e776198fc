"""Answers side by side, whoever comes and goes, against the same answers alone."""

from __future__ import annotations

import random
import threading
import time

import pytest
import torch

import winnow
from support.asked import DOCUMENT
from support.families import FAMILIES
from support.serving import (
    METHODS,
    Told,
    about,
    alone,
    alone_in_turn,
    beginning,
    chatted,
    small,
    stepwise,
    told,
)
from winnow.cache import compress
from winnow.commands.compress import document_start
from winnow.evaluate.sampling import GREEDY, Sampling
from winnow.serve.asked import Begun, Finished, Said
from winnow.serve.beginnings import Prompt
from winnow.serve.refusals import Refused

pytestmark = pytest.mark.usefixtures("one_thread")

WORDS = [word for word in DOCUMENT.text.split() if word.isalpha()]
QUESTIONS = [question.text for question in DOCUMENT.questions]
DRAWN = Sampling(0.9, 0.95, seed=3)


def text_of(length, seed):
    return " ".join(random.Random(seed).choices(WORDS, k=length))


def idle(engine, seconds=20):
    """Counts, once the engine has nothing to do."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        counts = engine.counts()
        if not (counts["waiting"] or counts["reading"] or counts["answering"]):
            return counts
        time.sleep(0.005)
    raise AssertionError(engine.counts())


class Gate:
    """Keeps the engine's thread at an event, until it is opened."""

    def __init__(self, kind=Begun):
        self.reached, self.opened = threading.Event(), threading.Event()
        self._kind = kind

    def __call__(self, event):
        if isinstance(event, self._kind) and not self.reached.is_set():
            self.reached.set()
            assert self.opened.wait(60)


MIXED = [
    (60, "full", GREEDY, 12),
    (5, "adakv", GREEDY, 20),
    (90, "adakv", DRAWN, 15),
    (33, "snapkv", GREEDY, 9),
    (1, "full", DRAWN, 25),
    (120, "snapkv", DRAWN, 1),
    (47, "adakv", GREEDY, 2),
]


@pytest.mark.parametrize("fold", [None, 16])
@pytest.mark.parametrize("which", ["bundled", "tiny"])
def test_every_answer_is_the_one_it_is_alone(which, fold, source, model, tiny, engine_of):
    """Requests of all kinds, some at once and some while others are answered, in pieces."""
    source, model = (source, model) if which == "bundled" else tiny
    methods = {**METHODS, "full": METHODS["adakv"]} if fold else METHODS
    starts = {name: beginning(model, method, name, fold) for name, method in methods.items()}
    engine = engine_of(source, model, rows=4, piece=16)
    asked = []
    for seed, (length, name, sampling, most) in enumerate(MIXED):
        asked.append(told(engine, starts[name], text_of(length, seed), most=most, sampling=sampling))
        if seed % 3 == 2:
            asked[-1].first.wait(60)
    for seed, ((length, name, sampling, most), each) in enumerate(zip(MIXED, asked, strict=True)):
        expected = alone(source, model, methods[name], text_of(length, seed), most, sampling, fold)
        assert each.wait().text.strip() == expected
        assert isinstance(each.last, Finished)
        assert each.last.tokens <= most
        assert each.begun.held_tokens == 0
        assert each.last.costs.method == str(winnow.method(methods[name]))
    assert idle(engine)["conversations_held"] == len(MIXED)


def test_at_most_so_many_rows(source, model, engine_of):
    engine, most = engine_of(source, model, rows=2), []
    each = beginning(model)
    asked = [Told(each, Prompt(text_of(9, seed), False, None), 6, at=lambda _: most.append(engine.counts()))
             for seed in range(6)]  # fmt: skip
    for one in asked:
        engine.ask(one.asked)
    for one in asked:
        one.wait()
    assert max(counts["answering"] for counts in most) == 2


def test_a_long_prompt_is_read_while_others_are_answered(source, model, engine_of):
    engine, start = engine_of(source, model, piece=16), beginning(model)
    said = []
    first = Told(start, Prompt(text_of(9, 1), False, None), 60, at=lambda event: said.append(event))
    engine.ask(first.asked)
    first.first.wait(60)
    second = Told(start, Prompt(text_of(200, 2), False, None), 4, at=said.append)
    engine.ask(second.asked)
    second.wait(), first.wait()
    (began,) = (place for place, event in enumerate(said) if event is second.begun)
    before = sum(isinstance(event, Said) for event in said[:began])
    assert before >= 200 // 16
    assert second.text.strip() == alone(source, model, "full", text_of(200, 2), 4)


@pytest.mark.parametrize(("method", "fold"), [("full", None), ("adakv @ 32", 16), ("adakv @ 32", None)])
def test_a_conversation_that_goes_on_reads_what_is_new(method, fold, source, model, engine_of):
    engine, start = engine_of(source, model), beginning(model, method, fold=fold)
    questions = [f"{DOCUMENT.text} {QUESTIONS[0]}", *QUESTIONS[1:3]]
    expected = alone_in_turn(source, model, method, questions, fold=fold)
    said = []
    for number, question in enumerate(questions):
        said.append(question)
        # Others are there, too, and change nothing.
        other = told(engine, start, text_of(20, number), most=6)
        asked = chatted(engine, source, start, *said).wait()
        other.wait()
        assert asked.text == expected[number]
        unread = asked.begun.prompt_tokens - asked.begun.held_tokens
        assert asked.begun.held_tokens == 0 if not number else unread < 60
        said.append(asked.text)


def test_two_go_on_with_one_conversation_at_once(source, model, engine_of):
    engine, start = engine_of(source, model), beginning(model, "adakv @ 32", fold=16)
    first = [f"{DOCUMENT.text} {QUESTIONS[0]}"]
    answer = chatted(engine, source, start, *first).wait().text
    asked = [chatted(engine, source, start, *first, answer, question) for question in QUESTIONS[1:4]]
    for question, each in zip(QUESTIONS[1:4], asked, strict=True):
        expected = alone_in_turn(source, model, "adakv @ 32", [*first, question], fold=16)
        assert each.wait().text == expected[1]
        assert each.begun.held_tokens > 100


def test_an_answer_that_is_made_again(source, model, engine_of):
    engine, start = engine_of(source, model), beginning(model)
    said = [f"{DOCUMENT.text} {QUESTIONS[0]}"]
    said.append(chatted(engine, source, start, *said).wait().text)
    said.append(QUESTIONS[1])
    found = [chatted(engine, source, start, *said).wait() for _ in range(2)]
    assert found[0].text == found[1].text
    assert found[0].begun == found[1].begun
    assert found[1].begun.held_tokens > 100
    assert chatted(engine, source, start, said[0]).wait().text == said[1]


def test_a_document_is_read_once(source, model, engine_of):
    engine = engine_of(source, model)
    context = compress(model, document_start(source.tokenizer, DOCUMENT.text), "adakv @ 96")
    start, plain = about(context, DOCUMENT.text), beginning(model)
    expected = alone_in_turn(
        source, model, "adakv @ 96", QUESTIONS[:2], document=DOCUMENT.text, context=context
    )  # fmt: skip
    asked = [chatted(engine, source, start, QUESTIONS[0]) for _ in range(3)]
    other = told(engine, plain, text_of(20, 1), most=6)
    for each in asked:
        assert each.wait().text == expected[0]
        assert each.begun.held_tokens == len(start.tokens)
    found = chatted(engine, source, start, QUESTIONS[0], expected[0], QUESTIONS[1]).wait()
    assert found.text == expected[1]
    assert found.begun.held_tokens > len(start.tokens)
    assert other.wait().text.strip() == alone(source, model, "full", text_of(20, 1), 6)
    # Names are apart: no conversation is another's.
    assert chatted(engine, source, plain, QUESTIONS[0], expected[0], QUESTIONS[1]).wait().begun.held_tokens == 0


def test_a_question_that_runs_together_with_its_document(source, model, engine_of):
    engine = engine_of(source, model)
    context = compress(model, document_start(source.tokenizer, DOCUMENT.text), "full")
    start = about(context, f"{DOCUMENT.text} more")
    problem = chatted(engine, source, start, "Who?").wait().problem
    assert (problem.field, problem.status) == ("messages", 400)
    assert "begin it with a word" in str(problem)


def test_a_text_that_goes_on_is_held(source, model, engine_of):
    engine, start = engine_of(source, model), beginning(model)
    text = text_of(60, 4)
    first = told(engine, start, text, most=6).wait()
    second = told(engine, start, f"{text}{first.text} and", most=6).wait()
    assert second.begun.held_tokens >= first.begun.prompt_tokens + 5
    assert second.text.strip() == stepwise(source, model, f"{text}{first.text} and", 6)
    # Words that the tokenizer cuts in another way are read as if nothing was held, and so is nothing but space.
    held = engine._held.longest(start.name, f"{text}{first.text} and")
    assert engine._behind(held._replace(tokens=[*held.tokens[:-1], 3]), Prompt(f"{held.text} and", False, None)) == []
    assert isinstance(told(engine, start, f"{text}{first.text}  ", most=2).wait().last, Finished)


def test_stops_end_an_answer_and_nobody_else(source, model, engine_of):
    engine, start = engine_of(source, model), beginning(model)
    text = text_of(50, 5)
    whole = alone(source, model, "full", text, 20)
    stop = whole.split()[2]
    asked = told(engine, start, text, most=20, stops=(stop,))
    other = told(engine, start, text, most=20)
    assert asked.wait().text.strip() == whole[: whole.index(stop)].strip()
    assert asked.last.reason == "stop"
    assert other.wait().text.strip() == whole
    # What was cut off is not gone on with.
    assert idle(engine)["conversations_held"] == 1


def test_the_reasons_of_ends(source, model, engine_of):
    engine, start = engine_of(source, model), beginning(model)
    assert told(engine, start, text_of(9, 1), most=3).wait().last[:2] == ("length", 3)
    document = about(compress(model, document_start(source.tokenizer, DOCUMENT.text), "full"), DOCUMENT.text)
    asked = chatted(engine, source, document, QUESTIONS[0], most=200).wait()
    assert asked.last.reason == "stop"
    assert asked.text == DOCUMENT.questions[0].answer


def test_an_answer_has_the_room_that_its_model_has(source, tiny, engine_of):
    small_source, model = small(source, max_position_embeddings=48)
    engine, start = engine_of(small_source, model), beginning(model)
    asked = told(engine, start, text_of(40, 1), most=10**9).wait()
    assert asked.last[:2] == ("length", 48 - asked.begun.prompt_tokens)
    problem = told(engine, start, text_of(60, 1)).wait().problem
    assert (problem.code, problem.field, problem.status) == ("context_length_exceeded", "prompt", 400)
    problem = chatted(engine, small_source, start, text_of(60, 1)).wait().problem
    assert problem.field == "messages"


def test_a_prompt_without_tokens(source, model, engine_of, monkeypatch):
    engine, start = engine_of(source, model), beginning(model)
    monkeypatch.setattr(engine, "_encoded", lambda text, special: [])
    problem = told(engine, start, " ").wait().problem
    assert (problem.field, problem.status) == ("prompt", 400)
    assert "no tokens" in str(problem)


# --- who goes away ---------------------------------------------------------------------------------------------


def test_canceled_while_waiting(source, model, engine_of):
    engine, start, gate = engine_of(source, model, rows=1, waiting=2), beginning(model), Gate()
    first = Told(start, Prompt("the old", False, None), 4, at=gate)
    engine.ask(first.asked)
    gate.reached.wait(60)
    waiting = [told(engine, start, "the old") for _ in range(2)]
    with pytest.raises(Refused, match="2 requests are waiting") as full:
        told(engine, start, "the old")
    assert full.value.status == 503
    engine.cancel(waiting[0].asked)
    # It makes room at once.
    third = told(engine, start, "the old", most=4)
    gate.opened.set()
    assert third.wait().text == first.wait().text
    waiting[1].wait()
    assert waiting[0].events == []


def test_canceled_while_its_prompt_is_read_in_pieces(source, model, engine_of):
    engine, start = engine_of(source, model, piece=16), beginning(model)
    long = Told(start, Prompt(text_of(300, 2), False, None), 4)

    def cancel(event):
        if isinstance(event, Said) and engine.counts()["reading"]:
            engine.cancel(long.asked)

    first = Told(start, Prompt(text_of(9, 1), False, None), 40, at=cancel)
    engine.ask(first.asked)
    first.first.wait(60)
    engine.ask(long.asked)
    assert first.wait().text.strip() == alone(source, model, "full", text_of(9, 1), 40)
    assert not any(isinstance(event, Begun) for event in long.events)
    assert idle(engine)["conversations_held"] == 1


def test_canceled_within_a_prompt(source, model, engine_of):
    """The model does not read to the end what nobody waits for."""
    engine, start = engine_of(source, model), beginning(model)
    asked = Told(start, Prompt(text_of(100, 2), False, None), 4)
    passed = []

    def watch(place):
        def reached(*_):
            passed.append(place)
            engine.cancel(asked.asked)

        return reached

    hooks = [layer.register_forward_pre_hook(watch(place)) for place, layer in enumerate(model.model.layers)]
    try:
        engine.ask(asked.asked)
        until = time.monotonic() + 20
        while not passed and time.monotonic() < until:
            time.sleep(0.005)
        idle(engine)
    finally:
        for hook in hooks:
            hook.remove()
    assert passed == [0]
    assert told(engine, start, text_of(9, 1)).wait().text.strip() == alone(source, model, "full", text_of(9, 1))


def test_canceled_while_answering(source, model, engine_of):
    engine, start = engine_of(source, model), beginning(model)
    others = [told(engine, start, text_of(30, seed), most=20) for seed in (1, 2)]
    gone = Told(start, Prompt(text_of(9, 3), False, None), 1000)
    gone._at = lambda event: engine.cancel(gone.asked) if len(gone.events) == 4 else None
    engine.ask(gone.asked)
    for seed, each in zip((1, 2), others, strict=True):
        assert each.wait().text.strip() == alone(source, model, "full", text_of(30, seed), 20)
    idle(engine)
    assert len(gone.events) <= 6
    assert not gone.ended.is_set()


# --- what goes wrong -------------------------------------------------------------------------------------------


def failing(model, when, problem):
    """Has forward passes fail whose tokens [R, N] a test picks."""

    def check(module, arguments, named):
        if when(named["input_ids"]):
            raise problem

    return model.register_forward_pre_hook(check, with_kwargs=True)


def test_an_error_while_reading_is_the_request_s_own(source, model, engine_of, caplog):
    engine, start = engine_of(source, model, piece=16), beginning(model)
    good = told(engine, start, text_of(20, 1), most=30)
    good.first.wait(60)
    word = source.tokenizer("bakery", add_special_tokens=False).input_ids[0]
    hook = failing(model, lambda ids: ids.shape[1] > 1 and word in ids, KeyError("so it goes"))
    try:
        problem = told(engine, start, f"{text_of(40, 2)} bakery").wait().problem
    finally:
        hook.remove()
    assert problem.status == 500
    assert "KeyError" in str(problem)
    assert [record.levelname for record in caplog.records if record.name == "winnow.serve.engine"] == ["ERROR"]
    assert good.wait().text.strip() == alone(source, model, "full", text_of(20, 1), 30)
    assert told(engine, start, text_of(9, 1)).wait().text.strip() == alone(source, model, "full", text_of(9, 1))


def test_an_error_in_a_step_is_its_rows(source, model, engine_of):
    """Answers of one cache are lost together; those of another are not, and new ones are given."""
    engine, start, folding = engine_of(source, model), beginning(model), beginning(model, "adakv @ 24", "f", 16)
    rows = [told(engine, start, text_of(20, seed), most=200) for seed in (1, 2)]
    for each in rows:
        each.first.wait(60)
    hook = failing(model, lambda ids: tuple(ids.shape) == (2, 1), RuntimeError("can't allocate memory"))
    try:
        problems = [each.wait().problem for each in rows]
    finally:
        hook.remove()
    assert {(problem.status, "memory ran out" in str(problem)) for problem in problems} == {(503, True)}
    gate = Gate(Said)
    row, other = Told(start, Prompt(text_of(20, 1), False, None), 12, at=gate), None
    engine.ask(row.asked)
    gate.reached.wait(60)
    other = told(engine, folding, text_of(30, 3), most=20)
    hook = failing(model, lambda ids: len(row.events) == 6 and ids.shape[1] == 1 and ids.shape[0] == 1, OSError("no"))
    gate.opened.set()
    try:
        outcomes = [row.wait(), other.wait()]
    finally:
        hook.remove()
    assert any(not isinstance(each.last, Finished) for each in outcomes)
    for each, text, method, fold, most in (
        (row, text_of(20, 1), "full", None, 12),
        (other, text_of(30, 3), "adakv @ 24", 16, 20),
    ):
        expected = alone(source, model, method, text, most, fold=fold)
        assert each.text.strip() == expected if isinstance(each.last, Finished) else expected.startswith(each.text[1:])
    assert told(engine, start, text_of(9, 1)).wait().text.strip() == alone(source, model, "full", text_of(9, 1))


def test_a_choice_that_fails_is_its_row_s_own(source, model, engine_of):
    class Broken(Sampling):
        def choice(self):
            count = iter(range(3))

            def choose(logits):
                next(count)
                return int(logits.argmax())

            return choose

    engine, start = engine_of(source, model), beginning(model)
    good = told(engine, start, text_of(20, 1), most=20)
    problem = told(engine, start, text_of(20, 2), most=20, sampling=Broken()).wait().problem
    assert "StopIteration" in str(problem)
    assert good.wait().text.strip() == alone(source, model, "full", text_of(20, 1), 20)


def test_held_conversations_go_where_memory_ran_out(source, model, engine_of):
    engine, start = engine_of(source, model), beginning(model)
    told(engine, start, text_of(20, 1)).wait()
    assert idle(engine)["conversations_held"] == 1
    hook = failing(model, lambda ids: True, torch.OutOfMemoryError("no"))
    try:
        assert told(engine, start, text_of(20, 2)).wait().problem.status == 503
    finally:
        hook.remove()
    assert idle(engine)["conversations_held"] == 0


def test_held_conversations_are_bounded(source, model, engine_of):
    engine, start = engine_of(source, model, conversations=3), beginning(model)
    for seed in range(5):
        told(engine, start, text_of(20, seed), most=3).wait()
    assert idle(engine)["conversations_held"] == 3
    one = told(engine_of(source, model), start, text_of(20, 0), most=3).wait().last.costs.held_bytes
    bounded = engine_of(source, model, held_bytes=2 * one)
    for seed in range(5):
        told(bounded, start, text_of(20, seed), most=3).wait()
    assert idle(bounded)["conversations_held"] == 2
    none = engine_of(source, model, conversations=0)
    told(none, start, text_of(20, 1)).wait()
    assert idle(none)["conversations_held"] == 0


@pytest.mark.parametrize("at", ["waiting", "answering", "reading"])
def test_closed_while_it_works(at, source, model, engine_of):
    engine, start, gate = engine_of(source, model, rows=1), beginning(model), Gate()
    first = Told(start, Prompt(text_of(20, 1), False, None), 1000, at=gate)
    if at == "reading":
        hook = model.model.layers[0].register_forward_pre_hook(lambda *_: gate(Begun(0, 0)))
    engine.ask(first.asked)
    gate.reached.wait(60)
    second = told(engine, start, text_of(9, 2))
    closing = threading.Thread(target=engine.close)
    closing.start()
    while not engine._closed:
        time.sleep(0.001)
    gate.opened.set()
    closing.join(20)
    if at == "reading":
        hook.remove()
    for each in (first, second):
        assert each.wait().problem.status == 503
    with pytest.raises(Refused, match="about to stop"):
        told(engine, start, "the old")


def test_a_thread_that_does_not_come_back_is_told(source, model, engine_of):
    engine, gate = engine_of(source, model), Gate()
    engine.ask(Told(beginning(model), Prompt("the old", False, None), 4, at=gate).asked)
    gate.reached.wait(60)
    assert not engine.close(0.01)
    gate.opened.set()


# --- all kinds of models ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_answered_as_alone(family, source, engine_of):
    """Sliding and linear layers keep states that are not joined: such rows are decoded one by one."""
    try:
        own, model = small(source, family)
    except (KeyError, ValueError):
        pytest.skip("not in this transformers")
    engine, start = engine_of(own, model, piece=16), beginning(model, "adakv @ 24")
    asked = [told(engine, start, text_of(length, length), most=4) for length in (30, 44, 7)]
    for length, each in zip((30, 44, 7), asked, strict=True):
        assert each.wait().text.strip() == alone(own, model, "adakv @ 24", text_of(length, length), 4)
