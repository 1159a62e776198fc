"""Needle scores against the equations by the letter."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support.families import build
from support.needles import BUNDLED, small_plan
from winnow.estimate.errors import NeedleError
from winnow.estimate.needle.capture import full_layers
from winnow.estimate.needle.generate import answer
from winnow.estimate.needle.prompt import Prompt, Span
from winnow.estimate.needle.scoring import CopyTally, MassTally, tally_for
from winnow.estimate.needle.settings import NeedleKind
from winnow.models import load_model

pytestmark = pytest.mark.usefixtures("one_thread")


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
    """Kinds of the layers that have keys of their own."""
    config = model.config.get_text_config(decoder=True)
    types = getattr(config, "layer_types", None) or ["full_attention"] * config.num_hidden_layers
    return types[: len(types) - (getattr(config, "num_kv_shared_layers", None) or 0)]


@pytest.mark.parametrize("kind", list(NeedleKind))
def test_bundled_scores_are_those_of_the_equations(exact, kind):
    plan = small_plan(kind, (0, 150), depths=2)
    compared = 0
    for job in map(plan.job, plan.places):
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


def test_a_step_without_the_attention_of_a_layer_is_refused():
    tally = MassTally(Prompt(torch.arange(6), Span(1, 3)), layers=1)
    tally.see(0, torch.ones(2, 6) / 6)
    tally.count(1)
    with pytest.raises(NeedleError, match="Only 0 of 1"):
        tally.count(2)
