"""One call from a text and questions to answers: the same as step by step, and refusals before any work."""

from __future__ import annotations

import copy
import logging
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForCausalLM, GenerationConfig, TextIteratorStreamer

import winnow
from support.asked import DOCUMENT, encoded
from winnow import BudgetError, MethodError, PromptError
from winnow.bundled import MODEL_PATH
from winnow.evaluate.answering import ask_afterwards, compress_document, finish, read_with_question
from winnow.evaluate.prompts import document_tokens, encode_prompt
from winnow.models.cache_argument import given_cache
from winnow.tasks.prompt_style import PromptStyle

pytestmark = pytest.mark.usefixtures("one_thread")

ASKED = [question.text for question in DOCUMENT.questions[:3]]


@pytest.fixture
def ask(model, tokenizer):
    def call(questions=ASKED[0], **settings):
        return winnow.generate(model, tokenizer, DOCUMENT.text, questions, **settings)

    return call


@pytest.fixture
def no_forward(model, monkeypatch):
    """A model that must not compute anything."""

    def forward(*given, **named):
        raise AssertionError("the model was run")

    monkeypatch.setattr(model, "forward", forward)


def same(found, expected) -> bool:
    facts = ("text", "method", "question_seen", "prompt_tokens", "new_tokens", "decode_steps")
    return all(getattr(found, fact) == getattr(expected, fact) for fact in facts) and (
        found.stats.slots == expected.stats.slots and found.stats.held_bytes == expected.stats.held_bytes
    )


@pytest.mark.parametrize("chunk", [None, 50, 1000])
@pytest.mark.parametrize("tokens", [1, 6, 40])
def test_with_the_question_it_is_the_greedy_answer(model, source, ask, chunk, tokens):
    for index, question in enumerate(ASKED):
        prefilled = read_with_question(model, winnow.method("adakv", 24), encoded(source, index), chunk)
        expected = finish(model, source.tokenizer, prefilled, tokens)
        assert same(ask(question, method="adakv @ 24", chunk_size=chunk, max_new_tokens=tokens), expected)


@pytest.mark.parametrize("chunk", [None, 50])
def test_before_the_question_the_text_is_compressed_once(model, source, ask, chunk, monkeypatch):
    prompts = [encoded(source, index) for index in range(len(ASKED))]
    start = document_tokens(source.tokenizer, DOCUMENT.text, prompts)
    document = compress_document(model, winnow.method("keydiff", "50%"), prompts[0][:, :start], chunk)
    expected = [finish(model, source.tokenizer, ask_afterwards(model, document, prompt), 8) for prompt in prompts]
    calls = []
    monkeypatch.setattr(
        "winnow.evaluate.generation.compress_document", lambda *given: calls.append(given) or compress_document(*given)
    )
    found = ask(ASKED, method="keydiff", budget="50%", question_aware=False, chunk_size=chunk, max_new_tokens=8)
    assert all(same(one, other) for one, other in zip(found, expected, strict=True))
    assert len(calls) == 1
    assert not any(answer.question_seen for answer in found)


def test_a_system_prompt_stands_before_the_text(source, ask, model):
    for aware in (True, False):
        found = ask(method="full", system="answer :", question_aware=aware, max_new_tokens=3)
        prompt = encode_prompt(source.tokenizer, DOCUMENT.text, ASKED[0], PromptStyle(system="answer :"))
        assert found.prompt_tokens == prompt.shape[1] > encoded(source).shape[1]
        assert found.text == finish(model, source.tokenizer, read_with_question(model, found.method, prompt), 3).text


def test_a_list_gives_a_list_and_one_question_one_answer(ask):
    (only,) = ask([ASKED[0]], max_new_tokens=4)
    assert same(ask(max_new_tokens=4), only)
    assert only.method == winnow.method("adakv", 128)
    assert only.prefill_seconds > only.compress_seconds > 0


def test_every_way_to_say_a_method(ask):
    ways = [{"method": "snapkv", "budget": 32}, {"method": "snapkv @ 32"}, {"method": winnow.method("snapkv", 32)}]
    assert {str(ask(**way, max_new_tokens=1).method) for way in ways} == {"snapkv @ 32"}
    assert ask(method="full", max_new_tokens=1).method.full


def test_what_comes_with_the_model_does_not_make_it_sample(model, ask, monkeypatch, recwarn):
    expected = ask(max_new_tokens=12).text
    noisy = copy.deepcopy(model.generation_config)
    noisy.update(do_sample=True, temperature=3.0, top_p=0.9, repetition_penalty=5.0)
    monkeypatch.setattr(model, "generation_config", noisy)
    assert ask(max_new_tokens=12).text == expected
    assert not recwarn.list


def test_what_comes_with_the_model_makes_it_no_other_than_one_answer_from_a_cache(model, ask, monkeypatch):
    expected = ask(max_new_tokens=12)
    other = copy.deepcopy(model.generation_config)
    other.update(num_beams=4, num_return_sequences=3, use_cache=False)
    monkeypatch.setattr(model, "generation_config", other)
    assert same(ask(max_new_tokens=12), expected)
    assert same(ask(generation_config=GenerationConfig(max_new_tokens=12, do_sample=False)), expected)


def test_stop_strings_are_read_by_the_tokenizer(model, tokenizer, ask, monkeypatch):
    given, generate = [], model.generate

    def watched(*prompt, **named):
        given.append(named["tokenizer"])
        return generate(*prompt, **named)

    monkeypatch.setattr(model, "generate", watched)
    ask(max_new_tokens=1)
    assert given == [tokenizer]


@pytest.mark.parametrize("own", [True, False])
def test_with_stop_strings_there_are_no_candidates(model, ask, monkeypatch, own):
    given = []

    def watched(*prompt, **named):
        given.append(named["custom_generate"])
        raise RuntimeError

    monkeypatch.setattr(model, "generate", watched)
    with pytest.raises(RuntimeError):
        ask()
    settings = GenerationConfig(stop_strings="the")
    if own:
        monkeypatch.setattr(model, "generation_config", settings)
    with pytest.raises(RuntimeError):
        ask(generation_config=None if own else settings)
    assert [each is None for each in given] == [False, True]


def test_sampling_is_that_of_generate(model, tokenizer, source, ask):
    sampled = GenerationConfig(do_sample=True, temperature=9.0, max_new_tokens=12)
    torch.manual_seed(3)
    found = ask(method="snapkv @ 64", generation_config=sampled)
    prompt = encoded(source)
    cache = winnow.CompressedCache(model, "snapkv @ 64")
    torch.manual_seed(3)
    ids = model.generate(prompt, past_key_values=cache, generation_config=sampled)[0, prompt.shape[1] :]
    assert found.text == tokenizer.decode(ids, skip_special_tokens=True).strip()
    assert found.text != ask(method="snapkv @ 64", max_new_tokens=12).text
    assert sampled.pad_token_id is None


@pytest.mark.parametrize("aware", [True, False])
@pytest.mark.parametrize(
    "named",
    [
        {},
        {"do_sample": True, "temperature": 0.5},
        {"repetition_penalty": 1.3},
        {"min_new_tokens": 50},
        {"do_sample": True, "top_k": 3, "bad_words_ids": [[9]]},
    ],
)
def test_candidates_change_no_answer(model, ask, named, aware, monkeypatch):
    passes, forward = [], model.forward

    def counted(*given, **arguments):
        passes.append(arguments["input_ids"].shape[1])
        return forward(*given, **arguments)

    monkeypatch.setattr(model, "forward", counted)
    settings = GenerationConfig(max_new_tokens=60, eos_token_id=-1, **named)
    found = []
    for lookup in (0, 7):
        passes.clear()
        torch.manual_seed(4)
        pieces: list[str] = []
        asked = {"question_aware": aware, "generation_config": settings, "streamer": pieces.append}
        answer = ask(method="snapkv @ 64", lookup=lookup, **asked)
        found.append((answer.text, answer.new_tokens, answer.decode_steps, answer.stats.slots, pieces))
        assert any(1 < size <= 8 for size in passes) == bool(lookup)
    assert found[0] == found[1]


@pytest.mark.parametrize("aware", [True, False])
def test_text_is_streamed(tokenizer, ask, aware):
    pieces: list[str] = []
    settings = {"method": "full", "question_aware": aware, "max_new_tokens": 12}
    answers = ask(ASKED, **settings, streamer=pieces.append)
    assert len(pieces) > len(ASKED)
    assert "".join(pieces).replace(" ", "") == "".join(answer.text for answer in answers).replace(" ", "")
    streamer = TextIteratorStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True, timeout=60)
    answer = ask(**settings, streamer=streamer)
    assert "".join(streamer).strip() == answer.text


def test_folding_reaches_the_cache(ask):
    settings = {"method": "streamingllm @ 16", "max_new_tokens": 40, "generation_config": endless(40)}
    folded, grown = ask(**settings, fold_every=4), ask(**settings)
    assert folded.new_tokens == grown.new_tokens == 40
    assert folded.stats.used_bytes < grown.stats.used_bytes


@pytest.mark.parametrize("aware", [True, False])
@pytest.mark.parametrize("method", ["adakv @ 24", "kvzip @ 50%"])
def test_chunks_of_the_settings_are_those_of_chunk_size(model, ask, monkeypatch, aware, method):
    settings, forward = {"method": method, "question_aware": aware, "max_new_tokens": 6}, model.forward
    passes: list[int] = []

    def watched(*given, **named):
        passes.append(named["input_ids"].shape[1])
        return forward(*given, **named)

    monkeypatch.setattr(model, "forward", watched)

    def asked(**more):
        passes.clear()
        return ask(ASKED, **settings, **more), passes.copy()

    expected, found = asked(chunk_size=50), asked(generation_config=GenerationConfig(prefill_chunk_size=50))
    assert all(map(same, found[0], expected[0]))
    assert found[1] == expected[1]
    other = asked(chunk_size=50, generation_config=GenerationConfig(prefill_chunk_size=20))
    assert other[1] == expected[1]
    with pytest.raises(PromptError, match="prefill_chunk_size is 0; give"):
        asked(generation_config=GenerationConfig(prefill_chunk_size=0))


def test_chunks_of_the_model_are_set_aside(model, ask, monkeypatch):
    expected, own = ask(ASKED, max_new_tokens=6), copy.deepcopy(model.generation_config)
    own.update(prefill_chunk_size=50)
    monkeypatch.setattr(model, "generation_config", own)
    assert all(map(same, ask(ASKED, max_new_tokens=6), expected))


def test_candidates_make_no_chunks(ask):
    settings = {"prompt_lookup_num_tokens": 3, "max_new_tokens": 6}
    expected = ask(generation_config=GenerationConfig(**settings))
    assert same(ask(generation_config=GenerationConfig(**settings, prefill_chunk_size=50)), expected)


def test_max_length_counts_the_prompt(ask, model, monkeypatch):
    length = ask(max_new_tokens=1).prompt_tokens
    for limit in (GenerationConfig(max_length=length + 3), GenerationConfig(max_length=length + 9, max_new_tokens=3)):
        limit.update(min_new_tokens=3)
        for settings in ({}, {"question_aware": False}, {"chunk_size": 50}):
            assert ask(generation_config=limit, **settings).new_tokens == 3
    assert ask(max_new_tokens=5, generation_config=GenerationConfig(max_length=3, min_new_tokens=5)).new_tokens == 5


def test_the_models_own_max_length_is_not_read(ask, model, monkeypatch, caplog):
    expected = ask(max_new_tokens=5)
    own = copy.deepcopy(model.generation_config)
    own.update(max_length=3)
    monkeypatch.setattr(model, "generation_config", own)
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    assert same(ask(max_new_tokens=5), expected)
    assert not caplog.records


@pytest.mark.parametrize("candidates", [{"prompt_lookup_num_tokens": 3}, {"assistant_early_exit": 1}])
def test_the_time_until_the_first_token_is_that_of_the_prompt(model, ask, monkeypatch, candidates):
    forward, passes = model.forward, []

    def counted(*given, **named):
        if isinstance(given_cache(named), winnow.CompressedCache):
            passes.append(named["input_ids"].shape[1])
        return forward(*given, **named)

    expected = ask(method="full", max_new_tokens=20, generation_config=endless(20))
    monkeypatch.setattr(model, "forward", counted)
    monkeypatch.setattr("winnow.evaluate.generation.clock", lambda model: len(passes))
    found = ask(method="full", max_new_tokens=20, generation_config=GenerationConfig(min_new_tokens=20, **candidates))
    assert found.text == expected.text
    assert (found.prefill_seconds, found.decode_seconds) == (1, len(passes) - 1)
    assert len(passes) - 1 < found.decode_steps == expected.decode_steps == 19


IMPOSSIBLE = {
    "cache_implementation": "static",
    "token_healing": True,
    "use_mtp": True,
    "is_assistant": True,
    "penalty_alpha": 0.6,
    "dola_layers": "low",
    "constraints": [[5]],
    "force_words_ids": [[5]],
}
"""Settings that no answer can have."""


@pytest.mark.parametrize("name", IMPOSSIBLE)
@pytest.mark.usefixtures("no_forward")
def test_settings_that_no_answer_can_have_are_refused(ask, name):
    settings = GenerationConfig(do_sample=False)
    setattr(settings, name, IMPOSSIBLE[name])
    with pytest.raises(PromptError, match=f"generation_config has {name}=.*leave {name} out"):
        ask(generation_config=settings)


@pytest.mark.parametrize("name", [*IMPOSSIBLE, "prompt_lookup_num_tokens", "assistant_early_exit"])
def test_settings_of_the_model_that_no_answer_can_have_are_set_aside(model, ask, monkeypatch, name):
    expected = ask(max_new_tokens=6)
    own = copy.deepcopy(model.generation_config)
    setattr(own, name, IMPOSSIBLE.get(name, 1))
    monkeypatch.setattr(model, "generation_config", own)
    assert same(ask(max_new_tokens=6), expected)
    if name in IMPOSSIBLE:
        changed = copy.deepcopy(own)
        changed.update(max_new_tokens=6)
        assert same(ask(generation_config=changed), expected)


@pytest.mark.parametrize("own", [True, False])
def test_nothing_but_tokens_is_asked_of_the_model(model, ask, monkeypatch, own):
    more = {"output_attentions": True, "output_hidden_states": True, "output_scores": True, "output_logits": True}
    asking = copy.deepcopy(model.generation_config)
    asking.update(return_dict_in_generate=True, **more)
    expected, named, forward = ask(max_new_tokens=6), [], model.forward
    if own:
        monkeypatch.setattr(model, "generation_config", asking)
    monkeypatch.setattr(model, "forward", lambda *given, **each: named.append(each) or forward(*given, **each))
    assert same(ask(max_new_tokens=6, generation_config=None if own else asking), expected)
    assert not any(each.get("output_hidden_states") for each in named)


@pytest.mark.parametrize("candidates", [{"prompt_lookup_num_tokens": 3}, {"assistant_early_exit": 1}])
def test_candidates_need_a_prompt_that_is_read_in_one_pass(model, ask, monkeypatch, candidates):
    (name,) = candidates
    settings = {"generation_config": GenerationConfig(**candidates), "max_new_tokens": 6}
    assert same(ask(**settings, chunk_size=1000), ask(max_new_tokens=6))
    monkeypatch.setattr(model, "forward", None)
    for way, remedy in (
        ({"chunk_size": 50}, "leave chunk_size out"),
        ({"question_aware": False}, "leave question_aware=False out"),
        ({"method": "kvzip @ 50%"}, "which kvzip does not"),
    ):
        with pytest.raises(PromptError, match=f"{name} works on prompts that are read in one pass.*{remedy}"):
            ask(**settings, **way)


def test_adapters_that_put_tokens_before_the_prompt_are_refused(model, ask, monkeypatch):
    monkeypatch.setattr(model, "active_peft_config", SimpleNamespace(is_prompt_learning=True), raising=False)
    with pytest.raises(winnow.ModelError, match="prompt-learning"):
        ask()


@pytest.mark.parametrize("settings", [{}, {"question_aware": False}, {"chunk_size": 50}], ids=str)
def test_weights_that_come_when_they_are_used(tokenizer, ask, settings):
    accelerate = pytest.importorskip("accelerate")
    away = accelerate.cpu_offload(AutoModelForCausalLM.from_pretrained(MODEL_PATH).eval(), execution_device="cpu")
    assert away.device.type == "meta"
    found = winnow.generate(away, tokenizer, DOCUMENT.text, ASKED, max_new_tokens=6, **settings)
    assert all(map(same, found, ask(ASKED, max_new_tokens=6, **settings)))


def endless(tokens: int) -> GenerationConfig:
    """Answers that do not end before."""
    return GenerationConfig(min_new_tokens=tokens, do_sample=False)


def test_the_answer_ends_where_the_model_can_read_no_further(model, ask, monkeypatch):
    length = ask(max_new_tokens=1).prompt_tokens
    monkeypatch.setattr(model.config, "max_position_embeddings", length + 3)
    assert ask(max_new_tokens=12, generation_config=endless(3)).new_tokens == 3


def test_the_models_own_attention_is_put_back(model, ask, monkeypatch):
    model.set_attn_implementation("eager")
    try:
        assert ask(max_new_tokens=1).new_tokens <= 1
        assert model.config._attn_implementation == "eager"
    finally:
        model.set_attn_implementation("winnow")


@pytest.mark.usefixtures("no_forward")
def test_a_tokenizer_in_the_place_of_the_model_is_told(model, tokenizer):
    with pytest.raises(TypeError, match="takes the model first and its tokenizer second"):
        winnow.generate(tokenizer, model, DOCUMENT.text, "Who?")


def test_what_cannot_work_is_refused_before_any_work(model, tokenizer, ask, monkeypatch):
    refused = [
        ({"method": "adakvv"}, MethodError, "did you mean 'adakv'"),
        ({"method": "adakv @ 12", "budget": 13}, MethodError, "given twice"),
        ({"method": winnow.method("adakv", 64), "budget": 13}, MethodError, r"given twice.*'adakv @ 64'"),
        ({"budget": "200%"}, BudgetError, "100"),
        ({"budget": "1kB"}, BudgetError, "bytes"),
        ({"budget": "200kB", "fold_every": 64}, BudgetError, "dense until they are folded"),
        ({"method": "full", "budget": 12}, BudgetError, "takes no budget"),
        ({"questions": ""}, PromptError, "question is empty"),
        ({"questions": ["Who?", "  "]}, PromptError, "question 2 of 2 is empty"),
        ({"questions": []}, PromptError, "no question"),
        ({"max_new_tokens": 0}, PromptError, "max_new_tokens is 0"),
        ({"lookup": -1}, PromptError, "lookup is -1"),
        ({"lookup": 2.5}, PromptError, "lookup is 2.5"),
        ({"chunk_size": -1}, winnow.CacheError, "chunk_size is -1"),
        ({"method": "snapkv+kivi(4) @ 64", "fold_every": 8}, MethodError, "kivi"),
        ({"generation_config": GenerationConfig(num_beams=2)}, PromptError, "one sequence"),
        ({"generation_config": GenerationConfig(max_length=20)}, PromptError, "max_length=20 counts them as well"),
        ({"generation_config": GenerationConfig(do_sample=True, num_return_sequences=2)}, PromptError, "one sequence"),
    ]
    for settings, error, message in refused:
        with pytest.raises(error, match=message):
            ask(**settings)
    for context in ("", " \n", None):
        with pytest.raises(PromptError, match="context is empty"):
            winnow.generate(model, tokenizer, context, "Who?")
    monkeypatch.setattr(model.config, "max_position_embeddings", 100)
    with pytest.raises(PromptError, match="reads 100 at most"):
        ask()
