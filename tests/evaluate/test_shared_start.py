"""Questions about one text: what their prompts begin with is read once, and each is answered as from its own prompt."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest
import torch
from transformers import GenerationConfig

import winnow
from support.asked import DOCUMENT, encoded
from support.families import LONGROPE, STARTING_ANEW, build, prompt
from support.turns import each_value
from winnow.evaluate import shared_start as module
from winnow.evaluate.answering import read_on, read_with_question
from winnow.evaluate.decoding import decode
from winnow.evaluate.layer_steps import layers_watched
from winnow.evaluate.prompt_bytes import prompt_bytes
from winnow.evaluate.shared import DenseReader
from winnow.evaluate.shared_start import is_worth_sharing, queries_alone, shared_start, start_of

pytestmark = pytest.mark.usefixtures("one_thread")
ASKED = [question.text for question in DOCUMENT.questions[:3]]
METHODS = [
    "full",
    "full+bits(4)",
    "adakv @ 24",
    "pyramidkv @ 10%",
    "h2o @ 24",
    "tova @ 24",
    "kvec(window=4, wide_window=8) @ 24",
    "aperturekv @ 24",
    "expectedattention @ 24",
    "keydiff @ 24",
    "criticalkv @ 24",
    "snapkv+cake @ 24",
    "snapkv+global @ 24",
    "snapkv+spark @ 24",
    "full+kivi",
    "adakv @ 40KiB",
]


@pytest.fixture
def tokens_read(model) -> Callable[[Callable[[], object]], float]:
    """Tokens that the model is given while something is done."""

    def count(do: Callable[[], object]) -> float:
        read: list[float] = []
        with layers_watched(model, read.append):
            do()
        return round(sum(read))

    return count


@pytest.mark.parametrize(("name", "chunk"), each_value(METHODS, [None, 7]))
def test_what_is_kept_is_what_a_prompt_of_its_own_keeps(model, source, name, chunk):
    prompts, method = [encoded(source, index) for index in range(3)], winnow.method(name)
    start = shared_start(model, prompts, method, chunk)
    for each in (*prompts, prompts[0]):
        ours, own = read_on(model, start, each, chunk), read_with_question(model, method, each)
        torch.testing.assert_close(ours.logits, own.logits, atol=1e-3, rtol=1e-3)
        assert ours.prompt_tokens == own.prompt_tokens
        assert ours.cache.stats().slots == own.cache.stats().slots
        for layer in range(len(own.cache.layers)):
            assert all(map(torch.equal, ours.cache.kept(layer), own.cache.kept(layer)))


@pytest.mark.parametrize("family", ["gemma2", "qwen3_next", "phi3"])
def test_layers_of_other_kinds_go_on_from_the_start_too(family):
    model = build(family)
    model.set_attn_implementation("winnow")
    ids = prompt(length=60)
    prompts = [ids, torch.cat([ids[:, :50], prompt(length=8, seed=2)], dim=1)]
    method = winnow.method("adakv", 12, window=4)
    start = shared_start(model, prompts, method)
    assert start.tokens == 50
    for each in prompts:
        ours, own = read_on(model, start, each), read_with_question(model, method, each)
        said = [list(decode(model, read.cache, read.logits, 6, frozenset())) for read in (ours, own)]
        assert said[0] == said[1]


@pytest.mark.parametrize(
    ("family", "options"),
    [*STARTING_ANEW.items(), ("phi3", {"rope_parameters": LONGROPE, "original_max_position_embeddings": 64})],
)
def test_models_that_do_not_read_in_pieces_share_nothing(family, options):
    model = build(family, **options)
    model.set_attn_implementation("winnow")
    ids = prompt(length=70)
    prompts = [ids, torch.cat([ids[:, :60], prompt(length=8, seed=2)], dim=1)]
    assert not is_worth_sharing(model, prompts, lambda tokens: 0)
    method = winnow.method("adakv", 12, window=4)
    shared = DenseReader(model, [method]).read_start(prompts)
    assert shared.start == 0
    for each in prompts:
        dense, own = shared.dense(each), read_with_question(model, method, each)
        torch.testing.assert_close(dense.logits, own.logits, atol=1e-5, rtol=1e-5)
        caches = dense.compress(method).cache, own.cache
        said = [list(decode(model, cache, own.logits, 6, frozenset())) for cache in caches]
        assert said[0] == said[1]


@pytest.mark.parametrize(
    "settings", [{}, {"chunk_size": 50}, {"fold_every": 4}, {"method": "h2o @ 32", "fold_every": 4}]
)
def test_a_list_of_questions_is_answered_as_each_alone_and_read_once(model, tokenizer, tokens_read, settings):
    ask = {"method": "adakv @ 24", "max_new_tokens": 1} | settings

    def asked(questions: list[str], most: int) -> list[winnow.Answer]:
        return winnow.generate(model, tokenizer, DOCUMENT.text, questions, **(ask | {"max_new_tokens": most}))

    together, alone = asked(ASKED, 9), [asked([each], 9)[0] for each in ASKED]
    assert [each.text for each in together] == [each.text for each in alone]
    assert [each.stats.slots for each in together] == [each.stats.slots for each in alone]
    assert all(each.question_seen for each in together)
    lengths = [each.prompt_tokens for each in together]
    read = tokens_read(lambda: asked(ASKED, 1))
    assert max(lengths) < read < max(lengths) + 0.2 * sum(lengths)
    assert tokens_read(lambda: asked(ASKED[:1], 1)) == lengths[0]


def test_the_time_of_the_start_counts_for_every_answer(model, source):
    prompts = [encoded(source, index) for index in range(2)]
    start = shared_start(model, prompts, winnow.method("adakv @ 24"))
    start.seconds = 1000.0
    assert all(1000 < read_on(model, start, each).seconds < 2000 for each in prompts)


def test_the_time_of_the_start_is_that_of_reading_it(model, source, monkeypatch):
    ticks = count()
    monkeypatch.setattr(module, "clock", lambda model: float(next(ticks)))
    assert shared_start(model, [encoded(source, index) for index in range(2)], winnow.method("full")).seconds == 1


def test_where_memory_has_no_room_every_prompt_is_read(model, tokenizer, tokens_read, monkeypatch):
    def asked() -> list[winnow.Answer]:
        return winnow.generate(model, tokenizer, DOCUMENT.text, ASKED, method="adakv @ 24", max_new_tokens=1)

    expected = asked()
    monkeypatch.setattr(module, "free_memory", lambda model: 0)
    assert [each.text for each in asked()] == [each.text for each in expected]
    assert tokens_read(asked) == sum(each.prompt_tokens for each in expected)


@pytest.mark.parametrize(
    ("name", "fold_every"),
    [
        ("full", None),
        ("snapkv @ 24", None),
        ("snapkv @ 24", 64),
        ("snapkv+cake @ 24", None),
        ("expectedattention @ 24", None),
        ("h2o @ 24", None),
        ("h2o @ 24", 64),
    ],
)
@pytest.mark.parametrize("family", ["qwen2", "gemma2", "falcon_h1"])
def test_start_and_fork_hold_what_is_counted(family, name, fold_every):
    model, method = build(family), winnow.method(name)
    model.set_attn_implementation("winnow")
    ids = prompt(length=400)
    start = shared_start(model, [ids, ids], method, fold_every=fold_every)
    cache = start.fork(ids)
    parts = [(layer.tail, layer.arriving) for layer in cache.compressed_layers()]
    held = sum(tail.keys.nbytes + tail.values.nbytes + arriving.nbytes() for tail, arriving in parts)
    held += cache._bytes_of_stock_layers()
    counted = prompt_bytes(model).dense(start.tokens, queries_alone(method, start.tokens, fold_every))
    assert counted <= held <= 1.05 * counted  # which tokens are no padding, and what queries paid (h2o)


def test_queries_that_wait_take_memory_too(model, tokenizer, tokens_read, monkeypatch):
    """A method that looks at all queries needs several times as much as one that looks at the last few."""
    lengths = [winnow.generate(model, tokenizer, DOCUMENT.text, each, max_new_tokens=1).prompt_tokens for each in ASKED]
    dense = 2 * prompt_bytes(model).dense(max(lengths), 64)
    monkeypatch.setattr(module, "free_memory", lambda model: 2 * dense)

    def asked(method: str) -> float:
        return tokens_read(
            lambda: winnow.generate(model, tokenizer, DOCUMENT.text, ASKED, method=method, max_new_tokens=1)
        )

    for method in ("snapkv @ 24", "h2o @ 24"):
        assert asked(method) < sum(lengths)
    assert asked("expectedattention @ 24") == sum(lengths)


def test_candidates_come_of_a_prompt_that_is_read_in_one_pass(model, tokenizer, tokens_read):
    def asked(**settings: object) -> list[winnow.Answer]:
        config = GenerationConfig(max_new_tokens=6, **settings)
        return winnow.generate(model, tokenizer, DOCUMENT.text, ASKED, method="adakv @ 24", generation_config=config)

    found, expected = asked(prompt_lookup_num_tokens=3), asked()
    assert [each.text for each in found] == [each.text for each in expected]
    read = tokens_read(lambda: asked(prompt_lookup_num_tokens=3))
    assert read > sum(each.prompt_tokens for each in expected)


def test_half_of_the_longest_prompt_must_be_shared_and_fit_twice(model, monkeypatch):
    first, ids = prompt(length=40), prompt(length=40, seed=2)
    alike = [first, torch.cat([first[:, :20], ids[:, :9]], dim=1)]
    assert start_of(model, alike) == 20

    def worth(prompts: list[torch.Tensor]) -> bool:
        return is_worth_sharing(model, prompts, lambda tokens: tokens // 5)

    assert worth(alike)
    assert not worth(alike[:1])
    assert not worth([first, torch.cat([first[:, :19], ids[:, :9]], dim=1)])
    needed = 2 * prompt_bytes(model).dense(40, 8)
    for free, room in ((2 * needed, True), (2 * needed - 2, False), (None, True)):
        monkeypatch.setattr(module, "free_memory", lambda model, free=free: free)
        assert worth(alike) == room
    # A token is left of each, whose logits begin its answer.
    assert start_of(model, [first, first]) == 39
