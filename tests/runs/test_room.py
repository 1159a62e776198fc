"""Questions that go side by side, against free memory and what is really held."""

from __future__ import annotations

import gc
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import winnow
from support.alive import alive
from support.families import build
from support.small_runs import recipe, small_task
from winnow.cache.hybrid import token_bytes
from winnow.composition.names import method
from winnow.estimate.executors.base import Item
from winnow.evaluate.batch import decode_rows
from winnow.models.devices import free_memory
from winnow.runs import reading
from winnow.runs.room import MOST, Load, Room, room_for
from winnow.tasks.example import Judging

pytestmark = pytest.mark.usefixtures("one_thread")
SIZES = st.integers(1, 10**12)
WINDOW = {"sliding_window": 128}
FACTS = {"gemma3_text": WINDOW, "gemma3n_text": {**WINDOW, "vocab_size_per_layer_input": 1024}}
"""Facts of models that go with the bundled tokenizer."""


def load(methods: tuple[str, ...] = ("full",), **facts: object) -> Load:
    """A prompt of 1,000 tokens."""
    made = Load(900, 100, 20, True, tuple(map(method, methods)))
    return replace(made, **facts)  # type: ignore[arg-type]


@given(st.none() | SIZES, SIZES, SIZES, st.integers(1, 32))
def test_as_many_questions_as_four_fifths_of_what_is_free_hold(
    free: int | None, once: int, each: int, most: int
) -> None:
    room = Room(free, once, each, most)
    fitting = [n for n in range(1, most + 1) if free is None or once + n * each <= int(free * 0.8)]
    assert room.questions == max(fitting, default=1)


def test_a_fifth_of_what_is_free_is_left() -> None:
    room = Room(free=100, once=20, each=10, most=32)
    assert room.questions == 6
    assert room.needed(6) == 80


@pytest.mark.parametrize(
    ("gigabytes", "expected"), [(1000.0, MOST), (0.0, 1), (None, MOST)], ids=["plenty", "none", "unknown"]
)
def test_free_memory_decides(model, monkeypatch, gigabytes, expected):
    free = None if gigabytes is None else int(gigabytes * 1e9)
    monkeypatch.setattr("winnow.models.devices.available_memory", lambda device: free)
    assert free_memory(model) == free
    assert room_for(model, load()).questions == expected


def test_workers_divide_a_device_and_load_a_model_each(model, monkeypatch):
    monkeypatch.setattr("winnow.models.devices.available_memory", lambda device: 10**9)
    weights = model.get_memory_footprint()
    assert room_for(model, load(), workers=1).free == 10**9
    assert 3 * (room_for(model, load(), workers=3).free + weights) == pytest.approx(10**9 + weights, abs=3)


def test_the_widest_layer_counts():
    """A layer of Gemma 3n has a width of its own."""
    room = [
        room_for(build("gemma3n_text", intermediate_size=[96, 96, widest, 96, 96, 96]), load()) for widest in (96, 196)
    ]
    assert room[1].once - room[0].once == 3 * 100 * 4 * 1000
    assert room[1].each == room[0].each


def test_methods_that_keep_more_need_more(model):
    token = token_bytes(model)

    def each(*methods: str, **facts: object) -> int:
        return room_for(model, load(methods, **facts)).each

    half = "snapkv @ 50%"
    assert each(half) - each("snapkv @ 10%") == 400 * token
    assert each(half, "snapkv @ 10%") == each(half)
    assert each(half, "snapkv @ 10%", together=2) - each(half) == (100 + 64) * token  # its slots and its tail
    queries = token * model.config.num_attention_heads // (2 * model.config.num_key_value_heads)
    assert each("full", half) - each("full") == 7 * queries  # a window of 8, where all slots are kept without a look
    assert each("h2o @ 50%") - each(half) == (1000 - 8) * queries
    assert each("snapkv @ 1MB") - each("snapkv @ 10%") == min(10**6, 1000 * token) - 100 * token
    seen, alone = (room_for(model, load(seen=seen)) for seen in (True, False))
    assert alone.each == 180 * token < seen.each  # one and a half times what is asked and answered
    assert alone.once > seen.once


def test_a_prompt_takes_no_more_bytes_than_it_has_and_those_of_its_window_at_least(model):
    names = ("snapkv @ 1GB", "snapkv @ 10%", "snapkv @ 0.1%")
    large, tenth, window = (room_for(model, load((name,))).each for name in names)
    assert large - tenth == 900 * token_bytes(model)
    assert tenth - window == (100 - winnow.method("snapkv @ 10%").scorer.guaranteed) * token_bytes(model)


def test_reading_a_prompt_takes_activations_and_three_blocks_of_probabilities(model):
    room, config, tokens = room_for(model, load()), model.config, 1000
    kept, tail = tokens * token_bytes(model), 64 * token_bytes(model)
    activations = tokens * (6 * config.hidden_size + 3 * config.intermediate_size) * 4
    block = tokens * 16 * config.num_attention_heads * 4
    assert room.once == room.each - kept - tail + activations + 3 * block


@pytest.fixture
def new_objects() -> None:
    """Whoever looks at all objects sees those of the test alone, not the millions that earlier ones left."""
    gc.collect()
    gc.freeze()


@pytest.mark.parametrize(
    ("family", "methods", "seen"),
    [
        (None, ("full", "snapkv @ 10%"), True),
        (None, ("snapkv @ 10%",), True),
        ("gemma3_text", ("full", "snapkv @ 10%"), True),
        ("gemma3_text", ("snapkv @ 10%",), False),
        ("gemma3n_text", ("snapkv @ 10%",), True),
        ("qwen3_next", ("snapkv @ 10%",), True),
        ("qwen3_next", ("snapkv @ 10%",), False),
        ("falcon_h1", ("full", "snapkv @ 10%"), True),
    ],
)
@pytest.mark.usefixtures("new_objects")
def test_a_question_takes_what_was_planned_for_it(model, tokenizer, monkeypatch, family, methods, seen):
    """Tensors that are alive while answers are decoded, in models with windows and states, too."""
    if family is not None:
        # Heads as wide as usual, beside which the places of slots are small.
        words = {"vocab_size": len(tokenizer), "max_position_embeddings": 2048, "head_dim": 64}
        model = build(family, **words | FACTS.get(family, {}))
        model.set_attn_implementation("winnow")
    held: list[int] = []

    def noted(*given: object) -> object:
        held.append(sum(alive().values()))
        return decode_rows(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(reading, "decode_rows", noted)
    task = small_task(documents=1, judging=Judging("contains_any", 12))
    made, prompts = recipe(model, [task], seen, methods=methods), []
    # The longest first: prompts read behind a shared start have room for it, each of them.
    examples = sorted(made.groups[0].examples, key=lambda each: -len(tokenizer(each.question).input_ids))
    for number in (2, 3):
        group = replace(made.groups[0], examples=tuple(examples[:number]))
        worker = replace(made, groups=(group,)).worker(model, tokenizer)
        prompts.append(worker(Item(0, 0))[0].prompt_tokens)
        del worker
    longest = max(prompts)
    planned = room_for(model, load(methods, context=longest - 20, question=20, answer=12, seen=seen)).each
    logits = 4 * len(tokenizer)
    assert held[1] - held[0] - logits == pytest.approx(planned, rel=0.02)  # also where slots are


def test_a_model_on_several_devices_has_the_memory_of_all(monkeypatch):
    class Spread(torch.nn.Module):
        device = torch.device("cuda", 0)

        def parameters(self, recurse: bool = True):
            return iter([_On("cuda", 0), _On("cuda", 1), _On("cpu")])

    class _On:
        def __init__(self, *device):
            self.device = torch.device(*device)

    monkeypatch.setattr("winnow.models.devices.available_memory", lambda device: 10 + (device.index or 0))
    assert free_memory(Spread()) == 21
