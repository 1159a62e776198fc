"""Answers side by side, whoever comes and goes, against the same answers alone."""

from __future__ import annotations

import threading
import time
import weakref
from dataclasses import replace

import pytest
import torch

import winnow
from support.asked import DOCUMENT
from support.families import FAMILIES, LONGROPE
from support.serving import (
    DRAWN,
    METHODS,
    QUESTIONS,
    Gate,
    Told,
    about,
    alone,
    alone_in_turn,
    beginning,
    chatted,
    idle,
    small,
    stepwise,
    text_of,
    told,
    wanted,
)
from support.turns import one_in
from winnow.bundled import MODEL_PATH
from winnow.cache import compress
from winnow.commands.compress import document_start
from winnow.evaluate.sampling import GREEDY, Sampling
from winnow.models import ModelSource, open_model
from winnow.serve.asked import Begun, Finished, Said
from winnow.serve.beginnings import Prompt, prompt_of
from winnow.serve.engine import Engine
from winnow.serve.reading import Reading
from winnow.serve.refusals import Refused
from winnow.serve.rows import Row
from winnow.serve.words import Words
from winnow.tasks.prompt_style import USUAL

pytestmark = pytest.mark.usefixtures("one_thread")


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
    engine = engine_of(source, model, rows=4, shortest_piece=16)
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
    engine, start = engine_of(source, model, shortest_piece=16), beginning(model)
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


@pytest.mark.parametrize("longer", [1, 2])
def test_a_conversation_goes_on_that_was_beside_longer_ones(longer, source, model, engine_of):
    """They end first; what it holds is its own length, not that of the longest."""
    questions = ["Who lives in the bakery?", f"{DOCUMENT.text} {QUESTIONS[0]}"]
    expected = alone_in_turn(source, model, "full", questions)
    engine, start, gate = engine_of(source, model), beginning(model), Gate()
    others = [Told(start, Prompt(text_of(40 + 40 * n, n), False, None), 2 + 2 * n, at=gate) for n in range(longer)]
    for each in others:
        engine.ask(each.asked)
    first = chatted(engine, source, start, questions[0])
    gate.opened.set()
    for each in others:
        each.wait()
    assert first.wait().text == expected[0]
    assert idle(engine)["conversations_held"] == longer + 1
    for held in engine._held._latest._held.values():
        # All but what was said last.
        assert held.cache.get_seq_length() == len(held.tokens) - 1
    second = chatted(engine, source, start, questions[0], first.text, questions[1]).wait()
    assert second.text == expected[1]
    assert second.begun.held_tokens == first.begun.prompt_tokens + 7


def test_the_same_text_in_other_tokens_is_not_gone_on_with(model, engine_of):
    """A template writes special tokens that a text to be gone on with, written just so, has twice."""
    tokenizer = open_model(MODEL_PATH).tokenizer
    tokenizer.chat_template = (
        "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[{{ m.content }}]{% else %}{{ m.content }};"
        "{% endif %}{% endfor %}"
    )
    source = ModelSource("templated", model.config, tokenizer)
    engine, start = engine_of(source, model), beginning(model)
    text = prompt_of(tokenizer, start, wanted(text_of(20, 1))).text
    answer = told(engine, start, text).wait().text
    found = chatted(engine, source, start, text_of(20, 1), answer, "Who?")
    assert found.asked.prompt.text.startswith(f"{text}{answer};")
    assert found.wait().begun.held_tokens == 0


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
    with pytest.raises(Refused, match="begin it with a word") as refused:
        chatted(engine, source, start, "Who?")
    assert (refused.value.field, refused.value.status) == ("messages", 400)


def test_a_text_that_goes_on_is_held(source, model, engine_of):
    engine, start = engine_of(source, model), beginning(model)
    text = text_of(60, 4)
    first = told(engine, start, text, most=6).wait()
    second = told(engine, start, f"{text}{first.text} and", most=6).wait()
    assert second.begun.held_tokens >= first.begun.prompt_tokens + 5
    assert second.text.strip() == stepwise(source, model, f"{text}{first.text} and", 6)
    # Words that the tokenizer cuts in another way are read as if nothing was held, and so is nothing but space.
    longer = Prompt(f"{text}{first.text} and", False, None)
    held, whole = engine._held.longest((start.name, False), longer.text), engine._encoded(longer)
    assert engine._behind(held, longer, whole) == whole[len(held.tokens) :]
    assert engine._behind(held._replace(tokens=[*held.tokens[:-1], 3]), longer, whole) == []
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
    with pytest.raises(Refused, match="tokens and needs room") as refused:
        told(engine, start, text_of(60, 1))
    problem = refused.value
    assert (problem.code, problem.field, problem.status) == ("context_length_exceeded", "prompt", 400)
    with pytest.raises(Refused) as refused:
        chatted(engine, small_source, start, text_of(60, 1))
    assert refused.value.field == "messages"


def test_a_prompt_without_tokens(source, model, engine_of, monkeypatch):
    engine, start = engine_of(source, model), beginning(model)
    monkeypatch.setattr(engine, "_encoded", lambda prompt: [])
    with pytest.raises(Refused, match="no tokens") as refused:
        told(engine, start, " ")
    assert (refused.value.field, refused.value.status) == ("prompt", 400)


def test_a_text_becomes_tokens_in_the_thread_of_who_asks(source, model, engine_of, monkeypatch):
    """Others' answers go on meanwhile."""
    engine, start, threads = engine_of(source, model), beginning(model), set()
    encoded = engine._encoded

    def watched(prompt):
        threads.add(threading.current_thread())
        return encoded(prompt)

    monkeypatch.setattr(engine, "_encoded", watched)
    told(engine, start, text_of(20, 1)).wait()
    assert threads == {threading.current_thread()}


def test_no_text_becomes_tokens_for_nothing(source, model, engine_of, monkeypatch):
    """One that no tokens of the model's could be, and one for which there is no room."""
    engine, start, gate = engine_of(source, model, rows=1, waiting=1), beginning(model), Gate()
    engine.ask(Told(start, Prompt("the old", False, None), 4, at=gate).asked)
    gate.reached.wait(60)
    told(engine, start, "the old")
    monkeypatch.setattr(engine, "_encoded", lambda prompt: pytest.fail("read"))
    try:
        with pytest.raises(Refused, match="1 requests are waiting"):
            told(engine, start, "the old")
    finally:
        gate.opened.set()
    idle(engine)
    longest = max(source.tokenizer.get_vocab(), key=len)
    with pytest.raises(Refused, match="bytes and needs room") as refused:
        told(engine, start, longest * (source.context + 1))
    assert (refused.value.code, refused.value.field) == ("context_length_exceeded", "prompt")


def test_who_goes_away_while_a_text_becomes_tokens_is_not_answered(source, model, engine_of, monkeypatch):
    engine, start, gate, encoded = engine_of(source, model, rows=1), beginning(model), Gate(), Engine._encoded
    engine.ask(Told(start, Prompt("the old", False, None), 4, at=gate).asked)
    gate.reached.wait(60)
    gone = Told(start, Prompt("the old", False, None))

    def left(prompt):
        engine.cancel(gone.asked)
        return encoded(engine, prompt)

    monkeypatch.setattr(engine, "_encoded", left)
    engine.ask(gone.asked)
    # It takes nobody's place.
    assert engine.counts()["waiting"] == 0
    gate.opened.set()
    assert idle(engine)["conversations_held"] == 1
    assert gone.events == []


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
    engine, start = engine_of(source, model, shortest_piece=16), beginning(model)
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
    engine, start = engine_of(source, model, shortest_piece=16), beginning(model)
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


@pytest.mark.parametrize("rows", [1, 3])
def test_nothing_keeps_a_cache_that_nobody_needs(rows, source, model, engine_of, monkeypatch):
    """Not even until the next request: what is not held is free at once."""
    caches, place = [], Engine._place

    def noted(engine, reading, logits):
        place(engine, reading, logits)
        caches.extend(weakref.ref(each) for each in (reading.cache, engine._batches[0].cache))

    monkeypatch.setattr(Engine, "_place", noted)
    engine = engine_of(source, model, conversations=0)
    asked = [told(engine, beginning(model), text_of(20, seed), most=20) for seed in range(rows)]
    for each in asked:
        each.wait()
    until = time.monotonic() + 20
    while any(cache() for cache in caches) and time.monotonic() < until:
        time.sleep(0.005)
    assert caches
    assert not any(cache() for cache in caches)


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


def test_who_waits_is_told_at_once_that_the_server_stops(source, model, engine_of):
    """Also while the model's thread is within a long pass."""
    engine, start, gate = engine_of(source, model, rows=1), beginning(model), Gate()
    engine.ask(Told(start, Prompt("the old", False, None), 4, at=gate).asked)
    gate.reached.wait(60)
    waiting = told(engine, start, "the old")
    engine.stop()
    assert waiting.problem.status == 503
    gate.opened.set()


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


def test_frequencies_that_depend_on_the_length_are_those_of_each_alone(source, engine_of):
    """Rows beside longer ones, and prompts that could be read in pieces."""
    own, model = small(source, "phi3", rope_parameters=LONGROPE, original_max_position_embeddings=64)
    engine, start = engine_of(own, model, shortest_piece=16), beginning(model)
    lengths = (5, 100, 20, 70)
    asked = [told(engine, start, text_of(length, length), most=30) for length in lengths]
    # All of them first: the model keeps the frequencies of its last pass, whichever thread it was in.
    answers = [each.wait().text.strip() for each in asked]
    for length, answer in zip(lengths, answers, strict=True):
        assert answer == alone(own, model, "full", text_of(length, length), 30)


@pytest.mark.parametrize("family", one_in(2, FAMILIES))
def test_every_family_is_answered_as_alone(family, source, engine_of):
    """Sliding and linear layers keep states that are not joined: such rows are decoded one by one."""
    try:
        own, model = small(source, family)
    except (KeyError, ValueError):
        pytest.skip("not in this transformers")
    engine, start = engine_of(own, model, shortest_piece=16), beginning(model, "adakv @ 24")
    asked = [told(engine, start, text_of(length, length), most=4) for length in (30, 44, 7)]
    for length, each in zip((30, 44, 7), asked, strict=True):
        assert each.wait().text.strip() == alone(own, model, "adakv @ 24", text_of(length, length), 4)


def test_a_whole_answer_is_not_told_of_an_error_in_the_next_step(source, model, engine_of):
    """One row ends in the very step before the one that fails: its answer stands, and nothing is told behind it."""
    engine, start, gate = engine_of(source, model), beginning(model), Gate(Said)
    first = Told(start, Prompt(text_of(20, 1), False, None), 6, at=gate)
    engine.ask(first.asked)
    gate.reached.wait(60)
    second = told(engine, start, text_of(20, 2), most=200)
    hook = failing(model, lambda ids: first.ended.is_set() and ids.shape[1] == 1, OSError("no"))
    gate.opened.set()
    try:
        assert "OSError" in str(second.wait().problem)
    finally:
        hook.remove()
    assert isinstance(first.wait().last, Finished)
    assert first.text.strip() == alone(source, model, "full", text_of(20, 1), 6)


def test_what_goes_on_is_read_whole_where_it_is_folded(source, model):
    """A piece behind something compressed would be folded by itself."""
    start = beginning(model, "adakv @ 32", fold=4)
    tokens = source.tokenizer(text_of(60, 1)).input_ids
    cache = start.cache(40)
    new = Reading(Told(start, Prompt("", False, None)).asked, tokens[:40], cache, 0.0)
    assert new.go_on(model, 16, lambda: None) is None
    assert new.go_on(model, 16, lambda: None) is None
    assert new.go_on(model, 16, lambda: None) is not None
    behind = Reading(Told(start, Prompt("", False, None)).asked, tokens, cache, 0.0)
    assert behind.held == 40
    assert behind.go_on(model, 4, lambda: None) is not None
    assert cache.get_seq_length() == len(tokens)


def test_a_text_that_ends_an_answer_in_its_last_token_is_the_reason(source):
    """OpenAI's clients read from it whether the answer is whole."""
    token = source.tokenizer("mango", add_special_tokens=False).input_ids[-1]
    asked = Told(None, Prompt("", False, None), 1, stops=("mango",)).asked
    words = Words(source.tokenizer, asked.stops)
    row = Row(asked, words, lambda _: token, 1, [3], 1, torch.zeros(1), 0.0, 0.0)
    row.say(frozenset())
    assert (row.reason, row.text, row.said) == ("stop", "", [token])
    other = Row(asked, Words(source.tokenizer), lambda _: token, 1, [3], 1, torch.zeros(1), 0.0, 0.0)
    other.say(frozenset())
    assert (other.reason, other.text) == ("length", "mango")


def test_what_a_conversation_shares_with_its_document_does_not_count(source, model, engine_of):
    context = compress(model, document_start(source.tokenizer, DOCUMENT.text), "full")
    start = replace(about(context, DOCUMENT.text), nbytes=context.cache().stats().held_bytes)
    engine = engine_of(source, model)
    found = chatted(engine, source, start, QUESTIONS[0], most=3).wait()
    assert idle(engine)["conversations_held"] == 1
    assert engine._held.nbytes == found.last.costs.held_bytes - start.nbytes


def test_times_are_those_of_the_request(source, model, engine_of):
    """Until its turn came, and from then to the last token of its prompt."""
    engine, start, gate = engine_of(source, model, rows=1), beginning(model), Gate(Said)
    engine.ask(Told(start, Prompt(text_of(9, 1), False, None), 2, at=gate).asked)
    gate.reached.wait(60)
    began = time.monotonic()
    second = told(engine, start, text_of(30, 2), most=2)
    time.sleep(0.05)
    gate.opened.set()
    costs = second.wait().last.costs
    whole = time.monotonic() - began
    assert 0.05 <= costs.waited_seconds < whole
    assert 0 < costs.read_seconds < whole
    assert 0 < costs.answer_seconds < whole


def test_nobody_reads_in_pieces_for_nobody(source, model, engine_of):
    engine, start, passes = engine_of(source, model, shortest_piece=16), beginning(model), []
    hook = failing(model, lambda ids: passes.append(ids.shape[1]), None)
    try:
        begun = told(engine, start, text_of(100, 2), most=1).wait().begun
    finally:
        hook.remove()
    assert passes[0] == begun.prompt_tokens > 64


def test_words_that_were_held_back_are_told_when_the_answer_ends(source):
    """The beginning of a text that would have ended it, before a token that ends it."""
    token = source.tokenizer("mango", add_special_tokens=False).input_ids[-1]
    said = iter([token, 2])
    asked = Told(None, Prompt("", False, None), 5, stops=("mango pie",)).asked
    row = Row(asked, Words(source.tokenizer, asked.stops), lambda _: next(said), 5, [3], 1, torch.zeros(1), 0.0, 0.0)
    row.say(frozenset([2]))
    assert (row.reason, row.text) == (None, "")
    row.say(frozenset([2]))
    assert (row.reason, row.text, row.said) == ("stop", "mango", [token])


def test_a_prompt_that_fills_the_model_has_no_room_for_an_answer(source, engine_of):
    own, model = small(source, max_position_embeddings=48)
    engine, start = engine_of(own, model), beginning(model)
    special = len(source.tokenizer(text_of(1, 1)).input_ids) - 1
    try:
        problem = told(engine, start, text_of(48 - special, 1)).wait().problem
    except Refused as refused:
        problem = refused
    assert problem.code == "context_length_exceeded"
    assert told(engine, start, text_of(47 - special, 1)).wait().last[:2] == ("length", 1)


def test_a_text_that_a_template_wrote_has_no_more_special_tokens(source, model, engine_of):
    engine, start = engine_of(source, model), beginning(model)
    counts = []
    for templated in (True, False):
        asked = Told(start, Prompt("<s> the old", templated, USUAL), 1)
        engine.ask(asked.asked)
        counts.append(asked.wait().begun.prompt_tokens)
    alone = source.tokenizer("<s> the old", add_special_tokens=False).input_ids
    assert counts[0] == len(alone)
    assert counts[1] == len(source.tokenizer("<s> the old").input_ids) == counts[0] + 1


def test_a_long_prompt_does_not_keep_the_server_from_stopping(source, model, engine_of):
    """No more than a layer of it is read."""
    engine, start, passed = engine_of(source, model), beginning(model), []

    def reached(*_):
        passed.append(1)
        if len(passed) == 1:
            threading.Thread(target=engine.close).start()
            while not engine._closed:
                time.sleep(0.001)

    hooks = [layer.register_forward_pre_hook(reached) for layer in model.model.layers]
    asked = Told(start, Prompt(text_of(60, 2), False, None), 4)
    try:
        engine.ask(asked.asked)
        assert asked.wait().problem.status == 503
    finally:
        for hook in hooks:
            hook.remove()
    assert len(model.model.layers) > 1 == len(passed)


def test_an_answer_with_space_around_it_is_held_as_it_was_said(model, engine_of):
    """A template writes what was told, without the space: another text, of other tokens."""
    tokenizer = open_model(MODEL_PATH).tokenizer
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    real = tokenizer.decode
    tokenizer.decode = lambda tokens, **options: f" {real(tokens, **options)}"
    engine, start = engine_of(ModelSource("spaced", model.config, tokenizer), model), beginning(model)
    asked = Told(start, prompt_of(tokenizer, start, wanted(text_of(20, 1))), 4)
    engine.ask(asked.asked)
    answer = asked.wait().text
    idle(engine)
    assert [text for _, text in engine._held._latest._held] == [f"{asked.asked.prompt.text} {answer}"]
