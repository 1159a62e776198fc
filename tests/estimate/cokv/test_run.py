"""Estimation from batches: it agrees with exact values, stops in time and asks nothing twice."""

from __future__ import annotations

import re

import pytest
import torch

from support.families import build
from support.games import additive
from winnow import CompressedCache, method
from winnow.estimate.cokv.coverage import check_coverage
from winnow.estimate.cokv.estimator import estimate_values
from winnow.estimate.cokv.examples import ValidationExample, generated_examples
from winnow.estimate.cokv.ledger import Ledger
from winnow.estimate.cokv.plan import Exhaustive, Sampled
from winnow.estimate.cokv.recipe import CoalitionRecipe
from winnow.estimate.cokv.run import run_exhaustive, run_sampled, run_shard
from winnow.estimate.cokv.sampling import PlayerSplits
from winnow.estimate.cokv.settings import StopRule, Terms
from winnow.estimate.errors import ShapleyError
from winnow.estimate.executors.base import Item
from winnow.estimate.executors.local import LocalExecutor
from winnow.estimate.shape import table_shape
from winnow.evaluate.batch import AnswerStart, decode_batch
from winnow.evaluate.decoding import prefill, stop_tokens
from winnow.evaluate.prompts import encode_prompt
from winnow.metrics import Expected
from winnow.metrics.words import words
from winnow.models import ModelSpec

pytestmark = pytest.mark.usefixtures("one_thread")


def test_estimator_agrees_with_exact_values_on_a_tiny_model(tokenizer) -> None:
    """Four heads, all sixteen coalitions; right is what the model itself says with its whole cache."""
    tiny = build("llama", vocab_size=810, num_hidden_layers=2)
    tiny.set_attn_implementation("winnow")
    examples = own_answers(tiny, tokenizer, generated_examples(8))
    players = table_shape(tiny)
    exhaustive = Exhaustive(players.total, pairs=4)
    values, utilities = run_exhaustive(exhaustive, worker(tiny, tokenizer, examples, exhaustive), Ledger(len(examples)))
    assert utilities[-1] == 1
    assert utilities[0] < 1
    torch.testing.assert_close(values.sum(), utilities[-1] - utilities[0])
    plan = Sampled(PlayerSplits(players.total, (1, 2, 3, 4), seed=0), pairs=64)
    found = run_sampled(plan, StopRule(512), worker(tiny, tokenizer, examples, plan), Ledger(len(examples)))
    assert ((found.values - values).abs() <= 3.5 * found.errors + 1e-12).all()


def own_answers(model, tokenizer, examples: tuple[ValidationExample, ...]) -> list[ValidationExample]:
    """Examples that a model answers with words, with these answers."""
    found = []
    for example in examples:
        cache = CompressedCache(model, method("full"))
        logits = prefill(model, encode_prompt(tokenizer, example.document, example.question), cache)
        (row,) = decode_batch(model, [AnswerStart(cache, logits)], 3, stop_tokens(model))
        text = tokenizer.decode(row.tokens, skip_special_tokens=True)
        if words(text):
            found.append(example._replace(expected=Expected((text,))))
    return found


def worker(model, tokenizer, examples, plan) -> LocalExecutor:
    recipe = CoalitionRecipe(ModelSpec(""), 2, tuple(examples), Terms(max_new_tokens=3), plan)
    return LocalExecutor(recipe.worker(model, tokenizer))


class Counting:
    """An additive game of eight heads, played on four examples; counts what it is asked."""

    def __init__(self, plan: Sampled) -> None:
        self.plan = plan
        self.asked: list[Item] = []

    def __call__(self, item: Item) -> list[float]:
        self.asked.append(item)
        weights = [(player + item.example) / 7 for player in range(8)]
        return additive(weights)(self.plan.coalitions(item.batch)).tolist()


def test_stops_when_halves_agree_and_no_earlier() -> None:
    plan = Sampled(PlayerSplits(8, (4,), 0), pairs=4)
    game = Counting(plan)
    found = run_sampled(plan, StopRule(400, overlap=1.0), LocalExecutor(game), Ledger(4))
    assert found.overlap == 1.0
    batches = found.samples // 4
    assert len(game.asked) == 4 * batches < 400
    shorter = run_sampled(plan, StopRule(4 * (batches - 1)), LocalExecutor(game), Ledger(4))
    assert shorter.overlap < 1.0


def test_what_is_known_is_not_asked_again_and_changes_nothing() -> None:
    plan = Sampled(PlayerSplits(8, (2, 4), 0), pairs=8)
    rule = StopRule(96)
    game = Counting(plan)
    once = run_sampled(plan, rule, LocalExecutor(game), Ledger(4))
    ledger = Ledger(4)
    known = {Item(2, 1), Item(0, 3), Item(50, 0)}
    for done in LocalExecutor(Counting(plan)).run(sorted(known)):
        ledger.add(done)
    again = Counting(plan)
    resumed = run_sampled(plan, rule, LocalExecutor(again), ledger)
    assert not known & set(again.asked)
    assert len(again.asked) == len(game.asked) - 2
    assert torch.equal(once.values, resumed.values)
    assert torch.equal(once.errors, resumed.errors)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("sizes", [(1,), (2, 4), (1, 8)])
def test_too_few_samples_are_told_before_anything_is_evaluated_with_a_number_that_does(sizes, seed) -> None:
    plan = Sampled(PlayerSplits(8, sizes, seed), pairs=2 * len(sizes))
    game = Counting(plan)
    with pytest.raises(ShapleyError, match="2 samples leave some head out of all coalitions of some size") as told:
        run_sampled(plan, StopRule(2), LocalExecutor(game), Ledger(4))
    with pytest.raises(ShapleyError, match="2 samples leave some head out"):
        run_shard(plan, 2, (0, 2), LocalExecutor(game), Ledger(4))
    assert game.asked == []
    enough = int(re.search(r"at least (\d+) samples", str(told.value))[1])
    assert torch.isfinite(run_sampled(plan, StopRule(enough), LocalExecutor(game), Ledger(4)).values).all()
    first = plan.splits.first_parts(range(enough - plan.pairs))
    with pytest.raises(ShapleyError):
        estimate_values(first, torch.rand(len(first), 2))


def test_sizes_that_hardly_ever_have_a_head_are_told_without_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("winnow.estimate.cokv.coverage._TRIED", 64)
    with pytest.raises(ShapleyError, match="no value there: take sizes closer to one half of the heads"):
        check_coverage(Sampled(PlayerSplits(256, (1,), 0), pairs=8), 64)
