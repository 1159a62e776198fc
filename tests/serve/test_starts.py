"""Starts that prompts have in common: what is held of them, and answers behind them against the same answers alone."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from support.asked import DOCUMENT
from support.families import LONGROPE
from support.serving import (
    DRAWN,
    QUESTIONS,
    WORDS,
    Gate,
    Told,
    about,
    alone,
    beginning,
    chatted,
    idle,
    small,
    text_of,
    told,
)
from winnow.cache import compress
from winnow.commands.compress import document_start
from winnow.evaluate.sampling import GREEDY
from winnow.serve.beginnings import Prompt
from winnow.serve.starts import WORTH, SharedStarts, Start

pytestmark = pytest.mark.usefixtures("one_thread")
SHARED = text_of(WORTH + 30, 99)
"""Words that prompts begin with."""


def text(seed: int, words: int = 20) -> str:
    return f"{SHARED} {text_of(words, seed)}"


def tokens_of(source, prompt: str) -> int:
    return len(source.tokenizer(prompt).input_ids)


# --- what is held ---------------------------------------------------------------------------------------------------


def start_of(*tokens: int, nbytes: int = 1) -> Start:
    return Start(tokens, SimpleNamespace(), nbytes)


def prompt_of(*ends: int, shared: int = WORTH) -> list[int]:
    return [*range(shared), *ends]


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 300), st.lists(st.integers(0, 2), min_size=1, max_size=4)),
        max_size=8,
    )
)
def test_what_prompts_share_is_found_as_if_compared_token_by_token(prompts) -> None:
    """The longest start among the earlier prompts of a kind, without what a few of them go on with by chance."""
    starts, read = SharedStarts(8, None), []
    held: dict[int, list[tuple[int, ...]]] = {}
    for kind, shared, ends in prompts:
        tokens = tuple(prompt_of(*[1000 + end for end in ends], shared=shared))
        alike = [0]
        for its, other in read:
            if its == kind:
                same = 0
                while same < min(len(tokens) - 1, len(other)) and tokens[same] == other[same]:
                    same += 1
                alike.append(same)
        most = min(each for each in alike if each > max(alike) - WORTH)
        behind = max(
            (s for s in held.get(kind, []) if len(s) < len(tokens) and tokens[: len(s)] == s), key=len, default=()
        )
        start, left = starts.begin(kind, list(tokens), [], lambda count: count)
        assert (start.tokens if start else ()) == behind
        assert left == (most if most - len(behind) >= WORTH else 0)
        if left:
            starts.keep(kind, start_of(*tokens[:left]))
            held.setdefault(kind, []).append(tokens[:left])
        read.append((kind, tokens))


def test_prompts_that_wait_count_as_those_that_were_read() -> None:
    starts = SharedStarts(8, None)
    assert starts.begin("m", prompt_of(1), [prompt_of(2), prompt_of(1, 3)], lambda _: 0) == (None, WORTH)
    assert starts.begin("other", prompt_of(1), [], lambda _: 0) == (None, 0)


def test_what_prompts_go_on_with_by_chance_is_no_part_of_a_start() -> None:
    starts = SharedStarts(8, None)
    starts.begin("m", prompt_of(1, 2, 3), [], lambda _: 0)
    assert starts.begin("m", prompt_of(1, 2, 4), [], lambda _: 0) == (None, WORTH + 2)  # as nobody can know yet
    assert starts.begin("m", prompt_of(1, 2, 5), [prompt_of(6)], lambda _: 0) == (None, WORTH)


def test_the_same_prompt_again_has_its_last_token_read() -> None:
    starts = SharedStarts(8, None)
    starts.begin("m", prompt_of(1, 2), [], lambda _: 0)
    assert starts.begin("m", prompt_of(1, 2), [], lambda _: 0) == (None, WORTH + 1)


def test_starts_are_bounded_in_number_and_bytes() -> None:
    starts = SharedStarts(2, 10)
    for each in range(3):
        starts.keep("m", start_of(*prompt_of(each), nbytes=4))
    assert len(starts) == 2
    assert starts.nbytes == 8
    assert starts.begin("m", prompt_of(0, 9), [], lambda _: 0)[0] is None
    assert starts.begin("m", prompt_of(1, 9), [], lambda _: 0)[0] == start_of(*prompt_of(1), nbytes=4)
    starts.keep("m", start_of(*prompt_of(3), nbytes=4))
    assert starts.begin("m", prompt_of(2, 9), [], lambda _: 0)[0] is None  # unused for longest
    starts.keep("m", start_of(*prompt_of(4), nbytes=11))  # too large for any room
    assert len(starts) == 2
    starts.forget()


def test_what_would_take_too_many_bytes_is_not_left_behind() -> None:
    starts = SharedStarts(8, 1000)
    starts.begin("m", prompt_of(1), [], lambda _: 0)
    assert starts.begin("m", prompt_of(2), [], lambda count: 8 * count) == (None, 0)
    assert starts.begin("m", prompt_of(3), [], lambda count: count) == (None, WORTH)


def test_none_are_held_where_none_are_asked_for() -> None:
    starts = SharedStarts(0, None)
    assert starts.begin("m", prompt_of(1), [prompt_of(2)], lambda _: 0) == (None, 0)


# --- answers --------------------------------------------------------------------------------------------------------

ASKED = [(1, GREEDY, 12), (2, DRAWN, 9), (3, GREEDY, 5), (2, GREEDY, 7)]


def assert_as_alone(engine, source, model, start, method, fold=None) -> list[int]:
    """Answers to prompts with one start, one after the other; the tokens of each that were held."""
    held = []
    for seed, sampling, most in ASKED:
        found = told(engine, start, text(seed), most=most, sampling=sampling).wait()
        assert found.text.strip() == alone(source, model, method, text(seed), most, sampling, fold)
        held.append(found.begun.held_tokens)
    return held


METHODS = [
    "full+bits(8)",
    "adakv @ 24",
    "h2o @ 24",
    "expectedattention @ 24",
    "kvec(window=4, wide_window=8) @ 24",
]


@pytest.mark.parametrize("fold", [None, 16])
@pytest.mark.parametrize("method", METHODS)
def test_answers_are_those_alone_and_the_start_is_read_twice(method, fold, source, model, engine_of) -> None:
    engine, start = engine_of(source, model, shortest_piece=50), beginning(model, method, fold=fold)
    # The second prompt leaves it behind, the third goes on behind it, the last is the second one again.
    shared = tokens_of(source, SHARED)
    held = assert_as_alone(engine, source, model, start, method, fold)
    assert held[:2] == [0, 0]
    assert all(shared <= each < shared + 4 for each in held[2:])
    assert idle(engine)["starts_held"] == 1


@pytest.mark.parametrize("family", ["gemma3_text", "qwen3_next", "falcon_h1", "deepseek_v3"])
def test_other_kinds_of_layers_go_on_behind_a_start(family, source, engine_of) -> None:
    source, model = small(source, family)
    engine = engine_of(source, model)
    held = assert_as_alone(engine, source, model, beginning(model, "adakv @ 24"), "adakv @ 24")
    assert held[2] >= tokens_of(source, SHARED)


def test_a_longer_start_is_left_behind_a_shorter_one(source, model, engine_of) -> None:
    engine, start = engine_of(source, model), beginning(model, "adakv @ 24")
    longer = text(7, words=WORTH + 40)
    texts = [text(1), text(2), *(f"{longer} {WORDS[each]} {text_of(9, each)}" for each in (3, 4, 5))]
    held = []
    for each in texts:
        found = told(engine, start, each, most=4).wait()
        assert found.text.strip() == alone(source, model, "adakv @ 24", each, 4)
        held.append(found.begun.held_tokens)
    assert held[:2] == [0, 0]
    assert tokens_of(source, SHARED) <= held[2] == held[3] < tokens_of(source, longer) <= held[4]
    assert idle(engine)["starts_held"] == 2


def test_prompts_that_wait_for_each_other_share_from_the_first_on(source, model, engine_of) -> None:
    engine, start, gate = engine_of(source, model, rows=8), beginning(model), Gate()
    first = Told(start, Prompt(text_of(9, 1), False, None), 3, at=gate)
    engine.ask(first.asked)
    gate.reached.wait(60)
    others = [told(engine, start, text(seed), most=6) for seed in range(4)]
    gate.opened.set()
    for seed, each in enumerate(others):
        assert each.wait().text.strip() == alone(source, model, "full", text(seed), 6)
    held = [each.begun.held_tokens for each in others]
    assert held[0] == 0
    assert min(held[1:]) >= tokens_of(source, SHARED)


def test_a_conversation_is_gone_on_with_rather_than_a_start(source, model, engine_of) -> None:
    engine, start = engine_of(source, model), beginning(model)
    for seed in (1, 2):
        chatted(engine, source, start, text(seed), most=4).wait()
    first = chatted(engine, source, start, text(3), most=4).wait()
    second = chatted(engine, source, start, text(3), first.text, QUESTIONS[0], most=4).wait()
    assert second.begun.held_tokens > first.begun.prompt_tokens > first.begun.held_tokens > WORTH


def test_questions_about_documents_leave_no_starts(source, model, engine_of) -> None:
    context = compress(model, document_start(source.tokenizer, DOCUMENT.text), "full")
    engine = engine_of(source, model, conversations=0)
    for seed in (1, 2, 3):
        chatted(engine, source, about(context, DOCUMENT.text), text(seed), most=2).wait()
    assert idle(engine)["starts_held"] == 0


def test_models_that_do_not_read_in_pieces_share_nothing(source, engine_of) -> None:
    source, model = small(source, "phi3", rope_parameters=LONGROPE, original_max_position_embeddings=64)
    engine = engine_of(source, model)
    assert assert_as_alone(engine, source, model, beginning(model), "full") == [0] * len(ASKED)
    assert idle(engine)["starts_held"] == 0


def test_a_start_that_is_not_read_to_its_end_is_not_held(source, model, engine_of) -> None:
    """A client that goes away while it is read leaves nothing half read behind."""
    engine, start = engine_of(source, model, shortest_piece=16), beginning(model)
    told(engine, start, text(1), most=2).wait()
    going = Told(start, Prompt(text(2), False, None), 4)
    seen = []

    def leave(module, args, kwargs) -> None:
        seen.append(kwargs["input_ids"].shape[1])
        if len(seen) == 2:
            engine.cancel(going.asked)

    busy = told(engine, start, text_of(9, 3), most=400)  # others are answered, so that it is read in pieces
    busy.first.wait(60)
    hook = model.register_forward_pre_hook(leave, with_kwargs=True)
    try:
        engine.ask(going.asked)
        busy.wait()
    finally:
        hook.remove()
    assert idle(engine)["starts_held"] == 0
    assert told(engine, start, text(4), most=6).wait().text.strip() == alone(source, model, "full", text(4), 6)


def test_a_start_has_room_for_itself_alone(source, model, engine_of) -> None:
    """A short start of a long prompt does not hold the memory of the whole prompt."""
    engine, start = engine_of(source, model), beginning(model)
    for seed in (1, 2):
        told(engine, start, text(seed, words=600), most=2).wait()
    idle(engine)
    (held,) = engine._starts._latest._held.values()
    layers = held.cache.compressed_layers()
    assert len(held.tokens) < tokens_of(source, SHARED) + 4
    assert all(layer.tail.keys.shape[2] <= len(held.tokens) + 64 for layer in layers)
    sizes = [part.nbytes for layer in layers for part in (layer.tail.keys, layer.tail.values)]
    assert sum(sizes) <= held.nbytes <= 1.2 * sum(sizes)


def test_where_memory_ran_out_starts_go(source, model, engine_of) -> None:
    engine, start = engine_of(source, model), beginning(model)
    for seed in (1, 2):
        told(engine, start, text(seed), most=2).wait()
    assert idle(engine)["starts_held"] == 1

    def fail(module, args, kwargs) -> None:
        raise torch.OutOfMemoryError("no room")

    hook = model.register_forward_pre_hook(fail, with_kwargs=True)
    try:
        assert told(engine, start, text(3), most=2).wait().problem.status == 503
    finally:
        hook.remove()
    assert idle(engine)["starts_held"] == 0
