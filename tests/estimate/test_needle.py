"""Needle scores: against the equations by the letter, where spans and needles lie, the journal, and the command."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from support.families import build
from winnow.bundled import HEADS_PATH, MODEL_PATH
from winnow.cli import main
from winnow.commands.heads.needle import reads_prose
from winnow.estimate.errors import JournalError, NeedleError
from winnow.estimate.journal import Journal
from winnow.estimate.needle import run as running
from winnow.estimate.needle.capture import full_layers
from winnow.estimate.needle.examples import NeedleExample, ProseExamples, TaskExamples, read_examples
from winnow.estimate.needle.generate import answer
from winnow.estimate.needle.haystack import (
    ProseHaystack,
    TaskHaystack,
    TextHaystack,
    insertion_point,
    split_sentences,
    with_needle,
)
from winnow.estimate.needle.judging import is_right, rouge1_recall, token_f1
from winnow.estimate.needle.plan import NeedlePlan, cut
from winnow.estimate.needle.prompt import Prompt, Span, build_prompt, locate
from winnow.estimate.needle.run import mean_scores, run_needles
from winnow.estimate.needle.scoring import CopyTally, MassTally, tally_for
from winnow.estimate.needle.settings import NeedleKind, Settings, spread_depths, spread_lengths
from winnow.estimate.shape import table_shape
from winnow.evaluate.prompts import encode_prompt
from winnow.heads import HeadScores
from winnow.models import load_model, open_model

pytestmark = pytest.mark.usefixtures("one_thread")

BUNDLED = open_model(MODEL_PATH)


@pytest.fixture(scope="module")
def model():
    return load_model(BUNDLED, "cpu", "float32")


@pytest.fixture(scope="module")
def exact():
    return load_model(BUNDLED, "cpu", "float32").double()


def by_the_letter(model, kind: NeedleKind, prompt: Prompt, limit: int) -> tuple[list[int], torch.Tensor]:
    """Tokens and scores [L, Hq] from full eager attention matrices, with plain loops."""
    model.set_attn_implementation("eager")
    full = [i for i, layer in enumerate(layer_types(model)) if layer in ("full_attention", "hybrid")]
    tokens, span = prompt.tokens.tolist(), range(prompt.span.start, prompt.span.stop)
    n, generated = len(span), []
    scores: dict[tuple[int, int], float] = {}
    for _ in range(limit):
        with torch.no_grad():
            output = model(torch.tensor([tokens + generated]), output_attentions=True, use_cache=False)
        token = int(output.logits[0, -1].argmax())
        if token == model.generation_config.eos_token_id:
            break
        # Linear layers have no entry among the attentions.
        matrices = [output.attentions[i] for i in full] if len(output.attentions) > len(full) else output.attentions
        for place, matrix in enumerate(matrices):
            for head, row in enumerate(matrix[0, :, -1].tolist()):
                order = sorted(range(len(row)), key=lambda position: -row[position])
                if kind is NeedleKind.R:
                    gain = order[0] in span and tokens[order[0]] == token
                else:
                    gain = sum(row[position] for position in order[:n] if position in span)
                scores[place, head] = scores.get((place, head), 0.0) + gain / n
        generated.append(token)
    table = torch.zeros(len(full), 1 + max(head for _, head in scores), dtype=torch.float64)
    for place, value in scores.items():
        table[place] = value
    return generated, table


def layer_types(model) -> list[str]:
    """Of the layers that have keys of their own."""
    config = model.config.get_text_config(decoder=True)
    types = getattr(config, "layer_types", None) or ["full_attention"] * config.num_hidden_layers
    return types[: len(types) - (getattr(config, "num_kv_shared_layers", None) or 0)]


def small_plan(kind: NeedleKind, lengths: tuple[int, ...] = (0, 200), depths: int = 3, seed: int = 0) -> NeedlePlan:
    chosen = Settings(kind, lengths, spread_depths(depths), seed)
    return NeedlePlan(BUNDLED.tokenizer, chosen, TaskExamples(2).examples(kind, seed), TaskHaystack(seed))


# --- Scores ---


@pytest.mark.parametrize("kind", list(NeedleKind))
def test_bundled_scores_are_those_of_the_equations(exact, kind):
    plan = small_plan(kind, (0, 150), depths=2)
    compared = 0
    for job in plan.jobs():
        exact.set_attn_implementation("sdpa")
        tally = tally_for(kind, job.prompt, 4)
        text = answer(exact, plan.tokenizer, job.prompt, tally, 20)
        generated, expected = by_the_letter(exact, kind, job.prompt, 20)
        assert text == plan.tokenizer.decode(generated).strip()
        torch.testing.assert_close(tally.scores(), expected, rtol=0, atol=1e-5)
        compared += bool(expected.any())
    assert compared > 1


FAMILIES = ("llama", "gpt2", "smollm3", "gemma2", "gemma3_text", "gemma3n_text", "gpt_oss", "qwen3_next", "falcon_h1")


@pytest.mark.parametrize("family", FAMILIES)
def test_scores_of_many_families_are_those_of_the_equations(family):
    """Soft-capping, sinks, sliding and linear layers, positions of any kind."""
    vocabulary = len(BUNDLED.tokenizer)
    model = build(family, vocab_size=vocabulary, vocab_size_per_layer_input=vocabulary).double()
    if family in ("gpt_oss", "qwen3_next"):
        model.set_experts_implementation("eager")  # the fast one knows no float64
    generator = torch.Generator().manual_seed(4)
    tokens = torch.randint(4, 500, (40,), generator=generator)
    prompt = Prompt(tokens, Span(11, 20))
    tally = MassTally(prompt, len(full_layers(model)))
    answer(model, BUNDLED.tokenizer, prompt, tally, 4)
    generated, expected = by_the_letter(model, NeedleKind.ER, prompt, 4)
    assert len(generated) == 4
    assert expected.min() > 0
    torch.testing.assert_close(tally.scores(), expected, rtol=0, atol=1e-5)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6))
def test_copying_needs_place_and_token(seed):
    rng = random.Random(seed)
    tokens = [rng.randrange(4) for _ in range(12)]
    start = rng.randrange(10)
    span = Span(start, rng.randrange(start + 1, 13))
    tally, expected = CopyTally(Prompt(torch.tensor(tokens), span), 2), torch.zeros(2, 3, dtype=torch.float64)
    for step in range(4):
        generated = rng.randrange(4)
        for layer in range(2):
            weights = torch.rand(3, 12 + step, generator=torch.Generator().manual_seed(rng.randrange(10**6)))
            tally.see(layer, weights)
            for head in range(3):
                looked = max(range(12 + step), key=lambda i, row=weights[head]: float(row[i]))
                if span.start <= looked < span.stop and tokens[looked] == generated:
                    expected[layer, head] += 1 / span.length
        tally.count(generated)
    torch.testing.assert_close(tally.scores(), expected)


def test_the_answer_is_the_models_own_and_the_model_is_left_as_it_was(model):
    plan = small_plan(NeedleKind.ER, (200,), depths=1)
    prompt = next(plan.jobs()).prompt
    model.set_attn_implementation("sdpa")
    stock = model.generate(prompt.tokens[None], max_new_tokens=20)[0, len(prompt.tokens) :]
    seen: list[tuple[int, ...]] = []

    class Watching(MassTally):
        def reduced(self, weights):
            seen.append(tuple(weights.shape))
            return super().reduced(weights)

    text = answer(model, plan.tokenizer, prompt, Watching(prompt, 4), 20, chunk_size=64)
    assert text == plan.tokenizer.decode(stock, skip_special_tokens=True).strip()
    assert model.config._attn_implementation == "sdpa"
    # One row of weights per layer and step, and nothing during the prefill. The stop token's step is one more.
    assert seen == [(8, len(prompt.tokens) + step) for step in range(len(stock)) for _ in range(4)]


def test_a_layer_that_shows_nothing_is_an_error(model):
    prompt = next(small_plan(NeedleKind.ER, (0,), depths=1).jobs()).prompt
    with pytest.raises(NeedleError, match="Only 4 of 5 full-attention layers"):
        answer(model, BUNDLED.tokenizer, prompt, MassTally(prompt, 5), 4)


def test_heads_of_hybrid_models_are_counted_over_full_layers_only():
    model = build("gemma3_text")
    assert full_layers(model) == {1: 0, 3: 1}
    assert table_shape(model) == (2, 2)


# --- Judging ---


def test_what_counts_as_right():
    assert rouge1_recall("eat warm rolls and sing", "eat warm rolls") == 1.0
    assert rouge1_recall("Eat rolls.", "eat warm rolls on steps") == 0.4
    assert token_f1("the red boat", "a red boat") == 1.0
    assert token_f1("red", "red boat here now") == pytest.approx(0.4)
    assert token_f1("", "red") == token_f1("the", "a") == 0.0
    example = NeedleExample("n", "n", "q", "plum", restates=True)
    for kind in NeedleKind:
        assert is_right(kind, example, "is bob, the favorite fruit of bob is plum")
        assert not is_right(kind, example, "is bob, the favorite fruit of bob is fig")
        assert not is_right(kind, example, "")
    half = NeedleExample("n", "n", "q", "one two three four")
    assert not is_right(NeedleKind.R, half, "one two and a lot more")  # exactly one half is not above it
    assert is_right(NeedleKind.R, half, "one two three and a lot more that would spoil an F1 of words like these")
    assert not is_right(NeedleKind.ER, half, "one two three and a lot more that would spoil an F1 of words like these")


# --- Where needles and spans lie ---


@pytest.fixture(scope="module")
def chatty():
    """A byte-level tokenizer with merges and a chat template, trained on prose."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=700, special_tokens=["<s>", "</s>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(ProseHaystack(1).sentences(3000, frozenset()), trainer)
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")
    wrapped.chat_template = (
        "<s>{% for m in messages %}[{{ m['role'] }}] {{ m['content'] | trim }} {% endfor %}"
        "{% if add_generation_prompt %}[assistant] {% endif %}"
    )
    return wrapped


@pytest.mark.parametrize("kind", list(NeedleKind))
@pytest.mark.parametrize("seed", range(4))
def test_the_span_is_found_by_offsets_in_any_prompt(chatty, kind, seed):
    rng = random.Random(seed)
    cases = [
        (chatty, ProseExamples(), ProseHaystack(seed)),
        (BUNDLED.tokenizer, TaskExamples(), TaskHaystack(seed)),
    ]
    for tokenizer, source, haystack in cases:
        for example in source.examples(kind, seed):
            sentences = haystack.sentences(rng.randrange(300), example.avoid)
            before = rng.randint(0, len(sentences))
            prompt = build_prompt(tokenizer, example, sentences, before)
            document = with_needle(sentences, example.needle, before)[0]
            assert prompt.tokens.tolist() == encode_prompt(tokenizer, document, example.question)[0].tolist()
            inside = prompt.tokens[prompt.span.inside]
            said = tokenizer.decode(inside).strip().lower()
            assert said == example.span.lower()
            assert example.span.lower() not in tokenizer.decode(inside[1:]).lower()
            assert example.span.lower() not in tokenizer.decode(inside[:-1]).lower()


@pytest.mark.parametrize("kind", list(NeedleKind))
def test_spans_hold_neither_reasons_nor_wrong_answers(kind):
    for example in [*ProseExamples().examples(kind, 0), *TaskExamples(8).examples(kind, 3)]:
        assert example.needle.count(example.span) == 1
        assert example.answer in example.span or kind is not NeedleKind.R2
        if kind is NeedleKind.R2:
            statements = split_sentences(example.needle)
            assert statements.index(example.span) in (len(statements) - 1, len(statements) - 2)
            assert len(statements) >= 3
        else:
            assert example.span == example.needle


def test_both_answers_of_a_reasoning_needle_are_right_once():
    prose = ProseExamples().examples(NeedleKind.R2, 0)
    assert len({example.needle for example in prose}) == 1
    assert len({example.span for example in prose}) == len(prose) == 2
    places = [split_sentences(e.needle).index(e.span) for e in TaskExamples(4).examples(NeedleKind.R2, 0)]
    assert places == [1, 2, 1, 2]


@given(st.integers(0, 30), st.floats(0, 1), st.integers(0, 10**6))
def test_needles_go_between_sentences(count, depth, seed):
    rng = random.Random(seed)
    sentences = ["".join(rng.choices("abc ", k=rng.randint(1, 30))) + "." for _ in range(count)]
    before = insertion_point(sentences, depth)
    text, start = with_needle(sentences, "NEEDLE.", before)
    assert text[start:].startswith("NEEDLE.")
    assert text == " ".join([*sentences[:before], "NEEDLE.", *sentences[before:]])
    whole = len(" ".join([*sentences, ""]))
    assert start <= depth * whole + 1e-6
    if before < count:
        assert start + len(sentences[before]) + 1 > depth * whole


def test_the_extremes_are_before_and_after_everything():
    sentences = ["One.", "Two two two.", "Three."]
    assert [insertion_point(sentences, depth) for depth in (0, 1)] == [0, 3]
    assert with_needle(sentences, "N.", 0) == ("N. One. Two two two. Three.", 0)
    assert with_needle(sentences, "N.", 3) == ("One. Two two two. Three. N.", 25)
    assert with_needle([], "N.", 0) == ("N.", 0)
    for depth in (-0.1, 1.1):
        with pytest.raises(NeedleError, match="between 0"):
            insertion_point(sentences, depth)


def test_tokens_without_characters_are_no_part_of_a_span():
    offsets = [(0, 0), (0, 3), (3, 3), (3, 6), (6, 9), (0, 0)]
    assert locate(offsets, 2, 6) == Span(1, 4)
    assert locate(offsets, 3, 6) == Span(3, 4)
    assert locate(offsets, 9, 12) is None


def test_sentences_of_a_text():
    text = 'One is 3.5 long. "Two?" Three!\nfour goes\n on. \n\n Title\n\nFive'
    assert split_sentences(text) == ["One is 3.5 long.", '"Two?"', "Three!", "four goes on.", "Title", "Five"]
    assert split_sentences("一。二！三") == ["一。", "二！", "三"]


@pytest.mark.parametrize("length", [0, 40, 150, 700, 2048])
def test_prompts_come_close_to_their_length_from_below(length):
    for example in TaskExamples().examples(NeedleKind.R2, 1):
        sentences = cut(BUNDLED.tokenizer, example, TaskHaystack(1), length, max_new_tokens=30)
        assert not any(word in sentence.lower().split() for sentence in sentences for word in example.avoid)
        sizes = {
            len(build_prompt(BUNDLED.tokenizer, example, sentences, before).tokens) + 30
            for before in (0, len(sentences) // 2, len(sentences))
        }
        assert max(sizes) <= max(length, 30 + 60)
        assert min(sizes) > length - 25


def test_a_short_haystack_is_repeated_only_when_asked_to():
    example = ProseExamples().examples(NeedleKind.R, 0)[0]
    text = " ".join(TaskHaystack(0).sentences(120, frozenset()))
    example = TaskExamples().examples(NeedleKind.R, 0)[0]
    with pytest.raises(NeedleError, match=r"too short: it has \d+ tokens, and a prompt of 400 needs \d+ .*--repeat"):
        cut(BUNDLED.tokenizer, example, TextHaystack(text, "mine"), 400, 20)
    repeated = cut(BUNDLED.tokenizer, example, TextHaystack(text, "mine", repeat=True), 400, 20)
    assert repeated[: len(split_sentences(text))] == split_sentences(text)
    assert len(cut(BUNDLED.tokenizer, example, TextHaystack(text, "mine"), 130, 20)) > 3
    endless = TextHaystack(text.replace(".", " and"), "mine", repeat=True)
    with pytest.raises(NeedleError, match="sentence 1 of the haystack is too long"):
        cut(BUNDLED.tokenizer, example, TextHaystack(text.replace(".", " and") * 9, "mine"), 900, 20)
    assert len(cut(BUNDLED.tokenizer, example, endless, 900, 20)) > 3
    with pytest.raises(NeedleError, match="no sentences"):
        TextHaystack(" \n", "blank")


def test_a_haystack_begins_alike_at_every_length():
    for haystack in (ProseHaystack(3), TaskHaystack(3)):
        longest = haystack.sentences(3000, frozenset())
        shorter = haystack.sentences(500, frozenset())
        assert longest[: len(shorter)] == shorter
        assert len(set(longest)) > 0.9 * len(longest)
        assert type(haystack)(4).sentences(500, frozenset()) != shorter


def test_lengths_and_depths_are_even():
    assert spread_lengths(2048) == (0, 512, 1024, 1536, 2048)
    assert spread_depths(5) == (0.0, 0.25, 0.5, 0.75, 1.0)
    assert spread_depths(1) == (0.5,)
    for wrong in (lambda: spread_lengths(9, 1), lambda: spread_depths(0)):
        with pytest.raises(NeedleError, match="At least"):
            wrong()


def test_needles_that_the_tokens_do_not_hold(chatty):
    with pytest.raises(NeedleError, match="does not know the words"):
        build_prompt(BUNDLED.tokenizer, ProseExamples().examples(NeedleKind.R, 0)[0], [], 0)
    shouting = PreTrainedTokenizerFast(tokenizer_object=chatty.backend_tokenizer)
    shouting.chat_template = "{{ messages[0]['content'] | upper }}"
    with pytest.raises(NeedleError, match="chat template changes the text"):
        build_prompt(shouting, ProseExamples().examples(NeedleKind.R, 0)[0], [], 0)


def test_tokenizers_without_offsets_are_refused():
    class Slow:
        is_fast = False

    with pytest.raises(NeedleError, match="Slow does not tell which characters"):
        NeedlePlan(
            Slow(), Settings(NeedleKind.R, (0,), (0.5,)), TaskExamples().examples(NeedleKind.R, 0), TaskHaystack(0)
        )


# --- Runs and their journal ---


def test_a_resumed_estimate_is_that_of_an_uninterrupted_one(model, tmp_path, monkeypatch):
    plan = small_plan(NeedleKind.R2)
    whole = list(run_needles(model, plan, Journal.open(tmp_path / "whole.jsonl", plan.config())))
    path = tmp_path / "parts.jsonl"
    runs = run_needles(model, plan, Journal.open(path, plan.config()))
    for _ in range(5):
        next(runs)
    runs.close()
    with path.open("ab") as file:  # a line that was being written when the machine went down
        file.write(b'{"kind":"r2","example":1,"len')
    made = []
    monkeypatch.setattr(running, "answer", lambda *args: made.append(1) or answer(*args))
    resumed = list(run_needles(model, plan, Journal.open(path, plan.config())))
    assert 0 < len(made) < len(set(plan.cells))
    assert [one.cell for one in resumed] == [one.cell for one in whole] == plan.cells
    assert mean_scores(plan, resumed) == mean_scores(plan, whole)
    made.clear()
    assert mean_scores(plan, list(run_needles(model, plan, Journal.open(path, plan.config())))) == mean_scores(
        plan, whole
    )
    assert not made
    lines = path.read_text().splitlines()
    assert len(lines) == 1 + len(plan.cells)
    assert set(json.loads(lines[1])) == {"kind", "example", "length", "depth", "prompt_tokens", "answer", "scores"}


def test_only_right_runs_count(model, tmp_path):
    plan = small_plan(NeedleKind.ER, (0,), depths=1)
    first, second = plan.examples
    plan.examples = (first, replace(second, answer="nothing like it"))
    outcomes = list(run_needles(model, plan, Journal.open(tmp_path / "j.jsonl", {})))
    assert [outcome.scores is None for outcome in outcomes] == [False, True]
    table = mean_scores(plan, outcomes)
    assert (table.samples, table.heads, table.method, table.shape) == (1, "query", "headkv-er", (4, 8))
    torch.testing.assert_close(table.values, outcomes[0].scores)
    with pytest.raises(NeedleError, match=rf"None of 1 runs(?s:.*)right: nothing like it\n.*given: {outcomes[1].text}"):
        mean_scores(plan, outcomes[1:])


def test_one_prompt_is_one_run_however_many_depths_it_stands_for(model, tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(running, "answer", lambda *args: made.append(1) or answer(*args))
    plan = small_plan(NeedleKind.ER, (0,), depths=10)
    outcomes = list(run_needles(model, plan, Journal.open(tmp_path / "j.jsonl", {})))
    assert (len(outcomes), len(made)) == (20, 2)


class TestJournal:
    def test_keeps_what_was_appended(self, tmp_path):
        path = tmp_path / "new" / "j.jsonl"
        journal = Journal.open(path, {"a": 1, "b": [0.5]})
        journal.append({"x": 0.1})
        journal.append({"y": "ä"})
        assert journal.records() == ({"x": 0.1}, {"y": "ä"})
        assert Journal.open(path, {"b": [0.5], "a": 1}).records() == journal.records()

    @pytest.mark.parametrize("torn", [b'{"y": 2', b'{"y": 2\n', b"\n"])
    def test_a_torn_last_line_is_dropped(self, tmp_path, torn):
        path = tmp_path / "j.jsonl"
        Journal.open(path, {}).append({"x": 1})
        with path.open("ab") as file:
            file.write(torn)
        journal = Journal.open(path, {})
        assert journal.records() == ({"x": 1},)
        journal.append({"z": 3})
        assert Journal.open(path, {}).records() == ({"x": 1}, {"z": 3})

    def test_a_torn_first_line_is_a_new_journal(self, tmp_path):
        path = tmp_path / "j.jsonl"
        path.write_bytes(b'{"winnow_jour')
        Journal.open(path, {"a": 1}).append({"x": 1})
        assert Journal.open(path, {"a": 1}).records() == ({"x": 1},)

    def test_another_configuration_is_refused_by_name(self, tmp_path):
        path = tmp_path / "j.jsonl"
        Journal.open(path, {"seed": 0, "model": "m"})
        with pytest.raises(JournalError, match=r"different in seed \(there 0, now 1\):"):
            Journal.open(path, {"seed": 1, "model": "m"})

    def test_damage_and_foreign_files_are_errors(self, tmp_path):
        path = tmp_path / "j.jsonl"
        Journal.open(path, {}).append({"x": 1})
        path.write_bytes(path.read_bytes() + b"broken\n" + b'{"y":2}\n')
        with pytest.raises(JournalError, match="damaged at line 3"):
            Journal.open(path, {})
        path.write_text("notes of mine")
        with pytest.raises(JournalError, match="not a journal"):
            Journal.open(path, {})
        assert path.read_text() == "notes of mine"


# --- The command, and what ships ---


@pytest.fixture
def needle(capsys, monkeypatch, tmp_path):
    """Runs `winnow heads needle` in an empty folder; returns its exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(["heads", "needle", *arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


QUICK = ("--lengths", "0,120", "--depths", "2")


def test_the_command_writes_a_table_and_uses_its_journal_again(needle, monkeypatch):
    code, out, err = needle("--kind", "er", "--out", "er.safetensors", *QUICK)
    assert code == 0, err
    assert "headkv-er: 40 of 40 runs count" in out
    table = HeadScores.load("er.safetensors")
    assert (table.shape, table.heads, table.samples, table.seed) == ((4, 4), "kv", 40, 0)
    assert (table.model, table.license, table.method) == ("winnow-bundled", "Apache-2.0", "headkv-er")
    assert "10 examples x lengths 0, 120 x 2 depths" in table.notes
    asked = json.loads(table.settings)
    assert (asked["kind"], asked["seed"], asked["lengths"], asked["depths"]) == ("er", 0, [0, 120], [0, 1])
    assert (asked["examples"], asked["examples_from"], asked["haystack_from"]) == (10, "tasks", "tasks")
    assert (asked["answer_tokens"], asked["dtype"]) == (50, "float32")
    monkeypatch.setattr(running, "answer", lambda *_: pytest.fail("a run was repeated"))
    again = ("--kind", "er", "--out", "er.safetensors", *QUICK)
    code, _, err = needle(*again)
    assert code == 1
    assert "exists" in err
    assert needle(*again, "--force", "--per", "query")[0] == 0
    raw = HeadScores.load("er.safetensors")
    assert (raw.shape, raw.heads) == ((4, 8), "query")
    torch.testing.assert_close(raw.grouped(4).values, table.values)
    code, _, err = needle(*again, "--force", "--seed", "1")
    assert code == 1
    assert "another configuration, different in seed" in err


def test_an_interrupted_command_says_how_to_go_on(needle, monkeypatch):
    arguments = ("--kind", "r2", "--out", "r2.safetensors", *QUICK)
    calls = []

    def interrupted(*args):
        calls.append(1)
        if len(calls) > 3:
            raise KeyboardInterrupt
        return answer(*args)

    monkeypatch.setattr(running, "answer", interrupted)
    code, _, err = needle(*arguments)
    assert code == 130
    assert "of 40 runs are kept in r2.journal.jsonl; the same command goes on from there." in err
    assert not Path("r2.safetensors").exists()
    monkeypatch.setattr(running, "answer", answer)
    assert needle(*arguments)[0] == 0
    assert HeadScores.load("r2.safetensors").samples == 40


def test_examples_and_haystack_of_a_user(needle):
    rng_free = "Alice walked to the old museum yesterday. There was rain over the castle on Monday. " * 20
    Path("hay.txt").write_text(rng_free)
    example = {
        "needle": "People say that the password of the harbor is lemon.",
        "span": "the password of the harbor is lemon",
        "question": "What is the password of the harbor?",
        "answer": "is lemon",
    }
    Path("mine.jsonl").write_text(json.dumps(example) + "\n\n")
    assert read_examples(Path("mine.jsonl"))[0].span == example["span"]
    arguments = ("--kind", "er", "--out", "x.safetensors", "--examples", "mine.jsonl", "--haystack", "hay.txt")
    code, out, err = needle(*arguments, "--lengths", "150", "--depths", "2")
    assert code == 0, err
    assert "2 of 2 runs count" in out
    asked = json.loads(HeadScores.load("x.safetensors").settings)
    assert (asked["examples"], asked["examples_from"], asked["haystack_from"]) == (1, "file", "file")
    code, _, err = needle(*arguments, "--force", "--lengths", "2000", "--depths", "2")
    assert code == 1
    assert "haystack is too short" in err


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 2: this is not JSON"),
        ("[1]", 'line 2: give an object with "needle"'),
        ('{"needle": "a.", "question": "b?"}', 'line 2: "answer" is missing'),
        ('{"needle": "a.", "question": "b?", "answer": " "}', 'line 2: "answer" is no text or empty'),
        ('{"needle": "a.", "question": "b?", "answer": 3}', 'line 2: "answer" is no text or empty'),
        ('{"needle": "a.", "question": "b?", "answer": "c", "span": "d"}', "line 2: the span is no part of the needle"),
        ('{"needle": "a.", "question": "b?", "answer": "c", "spam": "d"}', "line 2: there is no field 'spam'"),
    ],
)
def test_malformed_examples_are_named_by_line(tmp_path, line, said):
    path = tmp_path / "e.jsonl"
    path.write_text('{"needle": "a.", "question": "b?", "answer": "c"}\n' + line + "\n")
    with pytest.raises(NeedleError) as caught:
        read_examples(path)
    assert said in str(caught.value)


def test_example_files_that_are_none(tmp_path):
    (tmp_path / "blank.jsonl").write_text("\n")
    (tmp_path / "latin.jsonl").write_bytes("é".encode("latin-1"))
    for name, said in (("blank", "has no examples"), ("latin", "not UTF-8"), ("missing", "Cannot read")):
        with pytest.raises(NeedleError, match=said):
            read_examples(tmp_path / f"{name}.jsonl")


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--out", "x.json"], 1, "call it x.safetensors"),
        (["--lengths", "0,9000"], 1, "the model reads 2,048 tokens at most"),
        (["--lengths", "a,b"], 2, "not whole numbers"),
        (["--lengths", "-5,10"], 2, "cannot be negative"),
        (["--context", "9000"], 1, "--context is 9,000, and the model reads 2,048"),
        (["--haystack", "nowhere.txt"], 1, "There is no file nowhere.txt"),
        (["--forms", "prose"], 1, "does not know the words"),
        (["--kind", "r3"], 2, "r3"),
    ],
)
def test_wrong_usage_is_found_before_the_model_is_loaded(needle, monkeypatch, arguments, code, said):
    monkeypatch.setattr("winnow.commands.heads.needle.load_model", lambda *_: pytest.fail("the model was loaded"))
    ended, _, err = needle("--kind", "r", "--out", "x.safetensors", *arguments)
    assert ended == code
    assert said in err
    assert not list(Path().iterdir())


def test_nothing_accepted_shows_answers(needle):
    example = {"needle": "The gift of the tower is fig.", "question": "What is the gift of the tower?", "answer": "no"}
    Path("mine.jsonl").write_text(json.dumps(example))
    code, _, err = needle("--kind", "r", "--out", "x.safetensors", "--examples", "mine.jsonl", *QUICK)
    assert code == 1
    assert "None of 4 runs was answered right" in err
    assert "given: is fig" in err


@pytest.mark.parametrize("kind", list(NeedleKind))
def test_scores_of_the_bundled_model_ship(kind):
    table = HeadScores.load(HEADS_PATH / f"headkv-{kind}.safetensors")
    assert (table.method, table.model, table.heads, table.shape) == (f"headkv-{kind}", "winnow-bundled", "kv", (4, 4))
    assert (table.date, table.license) == ("2026-11-21", "Apache-2.0")
    assert table.samples is not None
    assert table.samples > 100
    assert float(table.normalized().values.sum()) == pytest.approx(1)


def test_forms_follow_what_the_tokenizer_knows(chatty):
    assert not reads_prose(BUNDLED.tokenizer)
    assert reads_prose(chatty)
