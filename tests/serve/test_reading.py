"""Prompts that are read in pieces: of any lengths they are those read whole, and time decides on the lengths."""

from __future__ import annotations

import itertools
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support.serving import Gate, Told, alone, alone_in_turn, beginning, chatted, idle, small, text_of
from winnow import compress
from winnow.evaluate.decoding import decode, prefill, stop_tokens
from winnow.serve import engine as module
from winnow.serve.asked import Said
from winnow.serve.beginnings import Prompt
from winnow.serve.reading import Reading

pytestmark = pytest.mark.usefixtures("one_thread")
METHODS = ["full", "adakv @ 24", "h2o @ 24", "kvec(window=4, wide_window=8) @ 24"]


def read(source, model, method, pieces):
    """Logits after a prompt, the positions that are kept of it, and its answer; pieces: lengths of the first ones."""
    start, tokens = beginning(model, method), source.tokenizer(text_of(90, 5)).input_ids
    reading = Reading(Told(start, Prompt("", False, None)).asked, tokens, start.cache(len(tokens)), 0.0)
    lengths, logits = iter(pieces), None
    while logits is None:
        logits = reading.go_on(model, next(lengths, None), lambda: None)
    layers = [] if method == "full" else range(len(model.model.layers))
    kept = [[head.tolist() for head in reading.cache.kept(layer)] for layer in layers]
    return logits, kept, list(decode(model, reading.cache, logits, 8, stop_tokens(model)))


@pytest.mark.parametrize("method", METHODS)
@settings(max_examples=8)
@given(pieces=st.lists(st.integers(2, 60), max_size=12))
def test_pieces_of_any_lengths_read_what_one_reads(method, pieces, source, model):
    logits, kept, said = read(source, model, method, pieces)
    expected, expected_kept, expected_said = read(source, model, method, [])
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)
    assert (kept, said) == (expected_kept, expected_said)


def read_turn(source, model, start, tokens, pieces):
    """Logits after a turn that follows what a cache holds and some generated tokens, and the answer to it."""
    cache = start()
    logits = prefill(model, torch.tensor([tokens]), cache)
    said = list(decode(model, cache, logits, 5, set()))
    behind = source.tokenizer(text_of(60, 7)).input_ids
    whole = [*range(cache.get_seq_length()), *behind]  # of what is held, only how many they are
    reading = Reading(Told(beginning(model), Prompt("", False, None)).asked, whole, cache, 0.0)
    lengths, logits, passes = iter(pieces), None, 0
    while logits is None:
        logits, passes = reading.go_on(model, next(lengths, None), lambda: None), passes + 1
    return logits, said, list(decode(model, cache, logits, 8, set())), passes


@pytest.mark.parametrize("method", [*METHODS, "adakv+bits(8) @ 24", "snapkv+global @ 24"])
@settings(max_examples=6)
@given(pieces=st.lists(st.integers(1, 40), max_size=9))
def test_turns_in_pieces_are_those_read_whole(method, pieces, source, model):
    start = partial(beginning(model, method).cache, 40)
    tokens = source.tokenizer(text_of(90, 5)).input_ids[:40]
    logits, said, answer, passes = read_turn(source, model, start, tokens, pieces)
    expected, said_too, answer_too, _ = read_turn(source, model, start, tokens, [])
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)
    assert (said, answer) == (said_too, answer_too)
    assert passes > 1 or not pieces


@pytest.mark.parametrize("family", ["gemma3_text", "qwen3_next", "lfm2", "falcon_h1"])
def test_turns_in_pieces_in_models_with_windows_and_states(family, source):
    _, model = small(source, family)
    tokens = source.tokenizer(text_of(90, 5)).input_ids[:40]
    start = partial(beginning(model, "adakv @ 24").cache, 40)
    expected, _, answer, _ = read_turn(source, model, start, tokens, [])
    for pieces in ([16] * 9, [7, 1, 30], [1, 1]):
        logits, _, found, _ = read_turn(source, model, start, tokens, pieces)
        torch.testing.assert_close(logits, expected, atol=2e-4, rtol=2e-4)
        assert found == answer


@pytest.mark.parametrize("method", ["full", "adakv @ 24"])
@settings(max_examples=6)
@given(pieces=st.lists(st.integers(1, 40), max_size=9))
def test_questions_about_documents_in_pieces_are_those_read_whole(method, pieces, source, model):
    context = compress(model, source.tokenizer(text_of(90, 5), return_tensors="pt").input_ids, method)
    question = source.tokenizer(text_of(40, 9)).input_ids
    logits, said, answer, _ = read_turn(source, model, context.cache, question, pieces)
    expected, said_too, answer_too, _ = read_turn(source, model, context.cache, question, [])
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)
    assert (said, answer) == (said_too, answer_too)


@pytest.mark.parametrize("shared", [31, 32, 33, 34, 48])
def test_pieces_end_with_what_prompts_share(shared, source, model, recwarn):
    """A single token is not read by itself, which would look like the first of an answer."""
    start, tokens, kept = beginning(model, "adakv @ 24"), source.tokenizer(text_of(90, 5)).input_ids, []
    told = Told(start, Prompt("", False, None)).asked
    reading = Reading(told, tokens, start.cache(shared + 1), 0.0, shared, lambda cache: kept.append(reading.read))
    reads = [0]
    while reading.go_on(model, 16, lambda: None) is None:
        reads.append(reading.read)
    assert kept == [shared]
    assert shared in reads
    assert min(after - before for before, after in itertools.pairwise(reads)) > 1
    assert not recwarn.list


# --- the engine, by a clock that tells what a test says ----------------------------------------------------------


@pytest.fixture
def passes(model, monkeypatch):
    """Tokens of every pass over a prompt; a millisecond each by the engine's clock, and no time beside them."""
    found = []

    def noted(module, arguments, named):
        tokens = named["input_ids"].shape[1]
        if tokens > 1:
            found.append(tokens)

    monkeypatch.setattr(module, "clock", lambda _: 1e-3 * sum(found))
    hook = model.register_forward_pre_hook(noted, with_kwargs=True)
    yield found
    hook.remove()


def beside(engine, start, *texts):
    """Prompts that wait for each other, read while somebody else is answered."""
    gate = Gate(Said)
    busy = Told(start, Prompt(text_of(9, 1), False, None), 300, at=gate)
    engine.ask(busy.asked)
    gate.reached.wait(60)
    others = [Told(start, Prompt(text, False, None), 4) for text in texts]
    for each in others:
        engine.ask(each.asked)
    gate.opened.set()
    for each in others:
        each.wait()
    engine.cancel(busy.asked)
    return others


def engine_with(engine_of, source, model, **limits):
    """An engine that reads every prompt from its beginning, and tries no candidates, which are passes as well."""
    return engine_of(source, model, candidates=0, starts=0, conversations=0, **limits)


def test_pieces_are_as_long_as_a_pause_may_be(source, model, engine_of, passes):
    """They begin with the least, for the first prompt alone."""
    engine = engine_with(engine_of, source, model, longest_pause=0.05, shortest_piece=16)
    assert engine.counts()["piece_tokens"] == 16
    texts = text_of(200, 2), text_of(120, 3)
    found = beside(engine, beginning(model), *texts)
    pieces = passes[1:]
    first, second = (each.begun.prompt_tokens for each in found)
    ramp = [16, 32, *[48] * ((first - 48) // 48)]
    assert pieces[: len(ramp)] == ramp
    assert set(pieces[len(ramp) + 1 : -1]) == {48}
    assert sum(pieces) == first + second
    assert idle(engine)["piece_tokens"] == 48
    for text, each in zip(texts, found, strict=True):
        assert each.text.strip() == alone(source, model, "full", text, 4)


def test_the_last_piece_teaches_nothing(source, model, engine_of, passes, monkeypatch):
    """It may be as long as others, but what follows it, the prompt's compression, is in its time."""
    monkeypatch.setattr(module, "clock", lambda _: 1e-3 * sum(passes) + (9.0 if sum(passes[1:]) == 96 else 0.0))
    engine = engine_with(engine_of, source, model, longest_pause=0.05, shortest_piece=16)
    beside(engine, beginning(model, "adakv @ 24"), text_of(95, 2))
    assert passes[1:] == [16, 32, 48]
    assert idle(engine)["piece_tokens"] == 48


def test_a_pause_that_is_too_short_for_any_piece(source, model, engine_of, passes):
    engine = engine_with(engine_of, source, model, longest_pause=0.001, shortest_piece=16)
    beside(engine, beginning(model), text_of(100, 2))
    assert set(passes[1:-1]) == {16}


def test_prompts_that_nobody_waits_for_are_read_whole(source, model, engine_of, passes):
    engine = engine_with(engine_of, source, model, longest_pause=0.001, shortest_piece=16)
    for seed in (1, 2):
        asked = Told(beginning(model), Prompt(text_of(100, seed), False, None), 1)
        engine.ask(asked.asked)
        assert asked.wait().begun.prompt_tokens == passes[-1]
        idle(engine)
    assert len(passes) == 2
    assert engine.counts()["piece_tokens"] == 16


@pytest.mark.parametrize("method", ["full", "adakv @ 32"])
def test_turns_of_conversations_are_read_in_pieces_beside_others(method, source, model, engine_of, passes):
    engine = engine_of(source, model, candidates=0, starts=0, longest_pause=0.05, shortest_piece=16)
    start, said = beginning(model, method), ["Who lives in the bakery?", text_of(100, 4)]
    expected = alone_in_turn(source, model, method, said, most=8)
    said.insert(1, chatted(engine, source, start, said[0]).wait().text)
    gate = Gate(Said)
    busy = Told(start, Prompt(text_of(9, 1), False, None), 300, at=gate)
    engine.ask(busy.asked)
    gate.reached.wait(60)
    before = len(passes)
    asked = chatted(engine, source, start, *said)
    gate.opened.set()
    begun = asked.wait().begun
    engine.cancel(busy.asked)
    pieces = passes[before:]
    assert [said[1], asked.text] == expected
    assert begun.held_tokens > 0
    assert sum(pieces) == begun.prompt_tokens - begun.held_tokens
    assert pieces[:2] == [16, 32]
    assert max(pieces) <= 48
