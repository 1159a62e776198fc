"""The bundled model loads like any other, is small, and retrieves from held-out text."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from support.judged import worth
from winnow.bundled import DOCUMENT_PATH, MODEL_PATH, QUESTIONS_PATH, is_bundled
from winnow.tasks import QUESTION_KINDS, format_prompt, generate_document

MEGABYTE = 1_000_000
SEEDS = range(3_000_000, 3_000_004)


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(MODEL_PATH)


@pytest.fixture(scope="module")
def model():
    return AutoModelForCausalLM.from_pretrained(MODEL_PATH).eval()


def generate(model, tokenizer, prompts):
    encoded = tokenizer(prompts, return_tensors="pt", padding=True, return_token_type_ids=False)
    with torch.no_grad():
        generated = model.generate(**encoded, do_sample=False)
    return tokenizer.batch_decode(generated[:, encoded.input_ids.shape[1] :], skip_special_tokens=True)


def test_size_and_shape(model):
    config = model.config
    assert (MODEL_PATH / "model.safetensors").stat().st_size < 8 * MEGABYTE
    assert 1_000_000 <= model.num_parameters() <= 4_000_000
    assert config.num_attention_heads > config.num_key_value_heads > 1
    assert config.head_dim >= 32
    assert config.num_hidden_layers * config.num_key_value_heads >= 16
    assert config.max_position_embeddings >= 2048


def test_tokenizer_and_generation_settings(model, tokenizer):
    assert tokenizer.padding_side == "left"
    assert tokenizer("alice").input_ids[0] == model.config.bos_token_id
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id
    assert model.generation_config.pad_token_id == tokenizer.pad_token_id


@pytest.fixture(scope="module")
def held_out(model, tokenizer):
    """Hits of each kind over a few held-out documents."""
    documents = [generate_document(seed, 384, 2) for seed in SEEDS]
    asked = [(document, question) for document in documents for question in document.questions]
    texts = generate(model, tokenizer, [format_prompt(d.text, q.text) for d, q in asked])
    hits = {kind: [] for kind in QUESTION_KINDS}
    for (_, question), text in zip(asked, texts, strict=True):
        hits[question.kind].append(worth("exact_match", text, question.answer))
    return hits


@pytest.mark.parametrize(("kind", "least"), [("single", 0.8), ("multikey", 0.8), ("reasoning", 0.6), ("chain", 0.6)])
def test_retrieves_from_held_out_documents(held_out, kind, least):
    assert len(held_out[kind]) >= 8
    assert sum(held_out[kind]) / len(held_out[kind]) >= least


def test_answers_come_from_the_document(model, tokenizer):
    document = generate_document(SEEDS[0], 512, 4)
    questions = [q for q in document.questions if q.kind in ("single", "multikey")]
    other = generate_document(SEEDS[1], 512, 4).text
    prompts = [format_prompt(other, question.text) for question in questions]
    texts = generate(model, tokenizer, prompts)
    hits = [worth("exact_match", text, q.answer) for q, text in zip(questions, texts, strict=True)]
    assert sum(hits) <= 1


def test_case_of_the_question_does_not_matter(model, tokenizer):
    document = generate_document(SEEDS[0], 256, 1)
    question = document.questions[0]
    shouted = format_prompt(document.text, question.text.upper())
    one, other = generate(model, tokenizer, [format_prompt(document.text, question.text), shouted])
    assert one == other


def test_demo_files_fit_the_model(model, tokenizer):
    document = DOCUMENT_PATH.read_text()
    questions = [json.loads(line) for line in QUESTIONS_PATH.read_text().splitlines()]
    assert len(questions) >= 40
    assert {question["kind"] for question in questions} == set(QUESTION_KINDS)
    lengths = [
        len(tokenizer(format_prompt(document, q["text"])).input_ids) + len(tokenizer(q["answer"]).input_ids)
        for q in questions
    ]
    assert max(lengths) <= model.config.max_position_embeddings
    assert max(lengths) >= 0.9 * model.config.max_position_embeddings


def test_card_states_the_measured_numbers():
    table = json.loads((MODEL_PATH / "evaluation.json").read_text())
    card = (MODEL_PATH / "README.md").read_text()
    for tokens, row in table.items():
        cells = " | ".join(f"{row[kind]['exact_match']:.1%}" for kind in QUESTION_KINDS)
        assert f"| {tokens} | {cells} |" in card
        assert all(row[kind]["n"] >= 100 for kind in QUESTION_KINDS)


def test_sparse_training_pass_equals_the_full_one(model):
    path = Path(__file__).parent.parent / "training" / "forward.py"
    spec = importlib.util.spec_from_file_location("training_forward", path)
    forward = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(forward)
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randint(4, model.config.vocab_size, (3, 40), generator=generator)
    chosen = torch.rand(3, 40, generator=generator) < 0.2
    with torch.no_grad():
        sparse, (rows, places) = forward.supervised_logits(model, inputs, chosen)
        full = model(input_ids=inputs, use_cache=False).logits[rows, places]
    assert len(rows) == chosen.sum()
    assert chosen[rows, places].all()
    torch.testing.assert_close(sparse, full, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["", "nul\0byte", "half\ud800", "~nobody/model", "n" * 5000])
def test_names_that_no_model_can_have(name):
    assert not is_bundled(name)
