"""Sliced Shapley values: games with known values, the estimator against exact values, and the utility of heads."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from math import comb, log, sqrt

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedModel

from support.families import build
from winnow import CompressedCache, method
from winnow.bundled import MODEL_PATH
from winnow.estimate.cokv.bound import slicing_bound
from winnow.estimate.cokv.estimator import estimate_values, sliced, strata
from winnow.estimate.cokv.exact import all_coalitions, exact_shapley, exact_strata
from winnow.estimate.cokv.examples import ValidationExample, generated_examples
from winnow.estimate.cokv.hadamard import hadamard
from winnow.estimate.cokv.ledger import Ledger
from winnow.estimate.cokv.plan import Exhaustive, Sampled
from winnow.estimate.cokv.recipe import CoalitionRecipe
from winnow.estimate.cokv.run import run_exhaustive, run_sampled
from winnow.estimate.cokv.sampling import PlayerSplits, default_sizes, strata_of
from winnow.estimate.cokv.settings import StopRule, Terms
from winnow.estimate.cokv.utility import CoalitionUtility
from winnow.estimate.errors import ShapleyError
from winnow.estimate.executors.base import Item
from winnow.estimate.executors.local import LocalExecutor
from winnow.estimate.shape import table_shape
from winnow.evaluate.batch import Row, decode_batch
from winnow.evaluate.greedy import prefill, stop_tokens
from winnow.evaluate.prompts import encode_prompt
from winnow.heads.compare import common_top
from winnow.models import load_model, open_model
from winnow.tasks.prompts import exact_match, is_settled

Game = Callable[[Tensor], Tensor]
"""Coalitions [C, n] bool -> utilities [C] float64."""


def additive(weights: list[float]) -> Game:
    return lambda masks: masks.double() @ torch.tensor(weights, dtype=torch.float64)


def voting(quota: int, votes: list[int]) -> Game:
    return lambda masks: (masks.long() @ torch.tensor(votes) >= quota).double()


def gloves(left: int) -> Game:
    return lambda masks: torch.minimum(masks[:, :left].sum(1), masks[:, left:].sum(1)).double()


def table_game(players: int, seed: int) -> Game:
    """Any utility for any coalition."""
    values = torch.rand(2**players, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return lambda masks: values[(masks.long() << torch.arange(masks.shape[1])).sum(1)]


def exact(game: Game, players: int) -> Tensor:
    return exact_shapley(game(all_coalitions(players)))


def pair_utilities(game: Game, first: Tensor) -> Tensor:
    return torch.stack([game(first), game(~first)], dim=1)


def sampled(game: Game, splits: PlayerSplits, samples: int):
    first = splits.first_parts(range(samples))
    return estimate_values(first, pair_utilities(game, first))


# --- exact -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("game", "expected"),
    [
        (additive([0.5, -1.0, 3.0, 0.0]), [0.5, -1.0, 3.0, 0.0]),
        (voting(2, [1, 1, 1]), [1 / 3, 1 / 3, 1 / 3]),
        (voting(3, [2, 1, 1]), [2 / 3, 1 / 6, 1 / 6]),
        (gloves(1), [2 / 3, 1 / 6, 1 / 6]),
        # The apex game: a big player with any small one, or all four small ones together.
        (voting(4, [3, 1, 1, 1, 1]), [3 / 5, 1 / 10, 1 / 10, 1 / 10, 1 / 10]),
    ],
)
def test_exact_values_of_known_games(game: Game, expected: list[float]) -> None:
    torch.testing.assert_close(exact(game, len(expected)), torch.tensor(expected, dtype=torch.float64))


@settings(max_examples=40, deadline=None)
@given(players=st.integers(1, 8), seed=st.integers(0, 1000))
def test_marginal_and_complementary_contributions_agree(players: int, seed: int) -> None:
    """Eq. 1 = Eq. 2, and both share out what all together are worth."""
    utilities = table_game(players, seed)(all_coalitions(players))
    values = exact_shapley(utilities)
    torch.testing.assert_close(exact_strata(utilities).mean(dim=1), values)
    torch.testing.assert_close(values.sum(), utilities[-1] - utilities[0])


@settings(max_examples=30, deadline=None)
@given(players=st.integers(2, 8), seed=st.integers(0, 1000))
def test_sizes_j_and_n_minus_j_say_the_same(players: int, seed: int) -> None:
    """SV[i, n - j] is an increasing linear function of SV[i, j], the same for every player, whatever the game."""
    game, masks = table_game(players, seed), all_coalitions(players)
    means = exact_strata(game(masks))
    u, sizes = game(masks) - game(~masks), masks.sum(dim=1)
    for size in range(1, players):
        average = u[sizes == size].mean()
        expected = (size * means[:, size - 1] - players * average) / (players - size)
        torch.testing.assert_close(means[:, players - size - 1], expected)


def test_exact_values_are_for_few_players() -> None:
    assert len(all_coalitions(16)) == 65536
    with pytest.raises(ShapleyError, match="17 players"):
        all_coalitions(17)
    with pytest.raises(ShapleyError, match=r"\[2\^n\]"):
        exact_shapley(torch.zeros(6))


# --- sampling --------------------------------------------------------------------------------------------------


def test_a_split_depends_on_seed_and_index_alone() -> None:
    splits = PlayerSplits(12, (3, 6), seed=4)
    many = splits.first_parts(range(40))
    assert torch.equal(splits.first_parts([17, 3])[1], many[3])
    assert not torch.equal(PlayerSplits(12, (3, 6), seed=5).first_parts(range(40)), many)
    assert [int(mask.sum()) for mask in many[:8]] == [3, 3, 6, 6, 3, 3, 6, 6]
    both = splits.coalitions(range(40))
    assert torch.equal(both[1::2], ~both[::2])


def test_every_coalition_of_a_size_is_equally_likely() -> None:
    first = PlayerSplits(5, (2,), seed=0).first_parts(range(5000))
    counts = [int((first[:, a] & first[:, b]).sum()) for a, b in combinations(range(5), 2)]
    assert sum(counts) == 5000
    assert max(abs(count - 500) for count in counts) < 5 * sqrt(500)


def test_sizes() -> None:
    assert default_sizes(256) == (32, 64, 96, 128)
    assert default_sizes(16) == (2, 4, 6, 8)
    assert default_sizes(3) == (1,)
    assert strata_of((2, 4, 8), 16) == (2, 4, 8, 12, 14)
    assert strata_of((3,), 3) == (3,)
    for wrong in ((), (0,), (9,), (2, 2)):
        with pytest.raises(ShapleyError):
            PlayerSplits(8, wrong, 0)
    for players, sizes in ((16, (4,)), (6, (3,)), (52, (26,))):
        with pytest.raises(ShapleyError, match="Balanced splits need"):
            PlayerSplits(players, sizes, 0, balanced=True)
    with pytest.raises(ShapleyError, match="multiple of 4"):
        Sampled(PlayerSplits(8, (2, 4), 0), pairs=6)


@pytest.mark.parametrize("order", [1, 2, 4, 8, 12, 16, 20, 24, 28, 36, 48, 64, 96, 224, 256, 288, 512])
def test_hadamard_matrices(order: int) -> None:
    matrix = hadamard(order)
    assert matrix is not None
    assert torch.equal(matrix @ matrix.T, order * torch.eye(order, dtype=torch.int64))
    assert matrix[0].tolist() == [1] * order


@pytest.mark.parametrize("order", [0, 3, 6, 18, 52])
def test_no_hadamard_matrix(order: int) -> None:
    assert hadamard(order) is None


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1000), sizes=st.sampled_from([(8,), (2, 8), (2, 4, 6, 8)]))
def test_balanced_splits_treat_all_pairs_alike(seed: int, sizes: tuple[int, ...]) -> None:
    splits = PlayerSplits(16, sizes, seed, balanced=True)
    first = splits.first_parts(range(15 * splits.cycle))
    for half in range(2):
        mine = first[half::2]
        mine = mine[mine.sum(dim=1) == 8]
        assert len(mine) == 15
        sides = mine.long() * 2 - 1
        together = (sides.T @ sides)[~torch.eye(16, dtype=torch.bool)]
        assert together.tolist() == [-1] * 240
    assert not torch.equal(first[::2], first[1::2])


def test_balanced_splits_measure_additive_games_without_error() -> None:
    """What one player is worth does not disturb the others: after one block there is nothing left to estimate."""
    weights = [0.3, -1.0, 2.0, 0.0, 5.0, 0.25, 1.0, 1.5]
    game = additive(weights)
    target = exact_strata(game(all_coalitions(8)))[:, 3]
    for seed in range(5):
        found = sampled(game, PlayerSplits(8, (4,), seed, balanced=True), 14)
        torch.testing.assert_close(found.values, target)
        assert found.spread < 1e-12
        assert not torch.allclose(sampled(game, PlayerSplits(8, (4,), seed), 14).values, target, atol=0.05)


def test_balanced_splits_reduce_the_error_of_other_games() -> None:
    game = voting(9, [1, 2, 3, 4, 1, 2, 3, 4])
    target = exact_strata(game(all_coalitions(8)))[:, 3]

    def error(balanced: bool) -> float:
        found = [sampled(game, PlayerSplits(8, (4,), seed, balanced), 56).values for seed in range(40)]
        return float((torch.stack(found) - target).square().mean())

    assert error(balanced=True) < error(balanced=False) / 2


# --- the estimator ---------------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(players=st.integers(2, 7), seed=st.integers(0, 1000), data=st.data())
def test_expectation_is_exact(players: int, seed: int, data: st.DataObject) -> None:
    """Every coalition of a size once is the expectation over random ones, in the size's stratum and the rest's."""
    size = data.draw(st.integers(1, players))
    game = table_game(players, seed)
    masks = all_coalitions(players)
    first = masks[masks.sum(dim=1) == size]
    expected = exact_strata(game(masks))
    u = game(first) - game(~first)
    for found, stratum in strata(first, u).items():
        torch.testing.assert_close(stratum.means, expected[:, found - 1])


def test_all_sizes_give_the_shapley_value() -> None:
    players, game = 5, table_game(5, 1)
    masks = all_coalitions(players)[1:]
    found = strata(masks, game(masks) - game(~masks))
    torch.testing.assert_close(sliced(found), exact(game, players))


def test_both_parts_count_with_their_sign() -> None:
    first = torch.tensor([[True, False, False], [False, True, False], [False, False, True]])
    found = strata(first, torch.tensor([1.0, 2.0, 6.0]))
    assert found[1].means.tolist() == [1, 2, 6]
    assert found[1].counts.tolist() == [1, 1, 1]
    assert found[2].means.tolist() == [-4, -3.5, -1.5]
    assert found[2].counts.tolist() == [2, 2, 2]
    torch.testing.assert_close(found[2].variances, torch.tensor([8.0, 12.5, 0.5], dtype=torch.float64))
    assert sliced(found).tolist() == [-1.5, -0.75, 2.25]


@pytest.mark.parametrize("sizes", [(4,), (1, 2, 3, 4), (2, 4, 6, 8)])
def test_estimates_are_within_their_margins(sizes: tuple[int, ...]) -> None:
    """Of many estimates, about 95% of the values lie within the 95% margin."""
    players, game = 8, table_game(8, 3)
    expected = exact_strata(game(all_coalitions(players)))
    target = expected[:, [size - 1 for size in strata_of(sizes, players)]].mean(dim=1)
    inside = []
    for seed in range(25):
        found = sampled(game, PlayerSplits(players, sizes, seed), 960)
        inside.append(((found.values - target).abs() <= found.margin()).double())
    assert 0.88 < float(torch.stack(inside).mean()) < 0.99


def test_more_samples_bring_smaller_errors_and_agreement() -> None:
    game = voting(9, [1, 2, 3, 4, 1, 2, 3, 4])
    few, many = (sampled(game, PlayerSplits(8, (4,), 0), count) for count in (40, 4000))
    assert many.errors.max() < few.errors.max() / 5
    assert many.overlap >= few.overlap
    assert many.samples == 4000
    torch.testing.assert_close(many.values, (many.halves[0] + many.halves[1]) / 2)


def test_a_player_without_a_sample_is_an_error() -> None:
    with pytest.raises(ShapleyError, match=r"player \d+ was in no sampled coalition of 1 players"):
        sampled(additive([1.0] * 16), PlayerSplits(16, (1,), 0), 8)


def test_utilities_that_are_all_the_same_are_an_error() -> None:
    with pytest.raises(ShapleyError, match="metric is 1 for all 16 coalitions"):
        sampled(lambda masks: torch.ones(len(masks)), PlayerSplits(4, (2,), 0), 8)
    with pytest.raises(ShapleyError, match="cannot be halved"):
        estimate_values(torch.ones(1, 4, dtype=torch.bool), torch.tensor([[1.0, 0.0]]))
    with pytest.raises(ShapleyError, match=r"utilities \[3, 2\]"):
        estimate_values(torch.ones(3, 4, dtype=torch.bool), torch.zeros(3))


def test_one_sample_has_no_margin() -> None:
    found = sampled(additive([1.0, 2.0]), PlayerSplits(2, (1,), 0), 2)
    assert torch.isinf(found.errors).all()
    with pytest.raises(ShapleyError, match="confidence"):
        found.margin(1.0)


def test_common_top() -> None:
    a, b = torch.tensor([4.0, 3.0, 2.0, 1.0]), torch.tensor([4.0, 1.0, 3.0, 2.0])
    assert common_top(a, a, 2) == 1
    assert common_top(a, b, 2) == 0.5
    assert common_top(a, b, 3) == 2 / 3
    # Ties go to the lower index, so constant values agree with themselves.
    assert common_top(torch.zeros(4), torch.zeros(4), 2) == 1


# --- the bound -------------------------------------------------------------------------------------------------


def test_bound() -> None:
    assert slicing_bound(16, 4, 0.5, 0.1) == 0.5 * sqrt(13 * log(20) / (2 * 4 * 16))
    assert slicing_bound(16, 8, 1, 0.05) < slicing_bound(16, 2, 1, 0.05)
    for wrong in ((4, 0, 1, 0.1), (4, 5, 1, 0.1), (4, 2, 1, 0.0), (4, 2, 1, 1.0), (4, 2, -1, 0.1)):
        with pytest.raises(ShapleyError):
            slicing_bound(*wrong)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_bound_holds_for_random_sizes(count: int) -> None:
    """Theorem 1 with delta 0.2, over all choices of so many sizes."""
    players = 8
    means = exact_strata(voting(9, [1, 2, 3, 4, 1, 2, 3, 4])(all_coalitions(players)))
    for player in means:
        bound = slicing_bound(players, count, float(player.max() - player.min()), 0.2)
        chosen = [player[list(sizes)].mean() - player.mean() for sizes in combinations(range(players), count)]
        assert sum(abs(float(gap)) > bound for gap in chosen) <= 0.2 * comb(players, count)


# --- heads of models -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bundled() -> PreTrainedModel:
    return load_model(open_model(MODEL_PATH), "cpu", "float32")


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(MODEL_PATH)


def test_the_whole_cache_answers_and_the_window_does_not(bundled, tokenizer) -> None:
    examples = generated_examples(4)
    utility = CoalitionUtility(bundled, tokenizer, examples, Terms())
    masks = torch.stack([torch.ones(4, 4), torch.zeros(4, 4)]).bool()
    assert [utility(example, masks) for example in range(4)] == [[1.0, 0.0]] * 4


def test_answers_that_stop_early_count_as_whole_ones(bundled, tokenizer) -> None:
    """Rows leave the batch once they are decided; each must be judged as if it had been decoded to its end."""
    (example,) = generated_examples(4)[3:]
    masks = torch.rand(24, 4, 4, generator=torch.Generator().manual_seed(2)) < 0.7
    found = CoalitionUtility(bundled, tokenizer, [example], Terms())(0, masks)
    prompt = encode_prompt(tokenizer, example.document, example.question)
    cache = CompressedCache(bundled, method("full"))
    logits = prefill(bundled, prompt, cache)
    rows = [Row(cache.coalitions(mask[None], 8), logits) for mask in masks]
    decoded = decode_batch(bundled, rows, 24, stop_tokens(bundled))
    texts = [tokenizer.decode(row.tokens, skip_special_tokens=True) for row in decoded]
    assert found == [float(exact_match(text, example.answer)) for text in texts]
    assert 0 < sum(found) < len(found)


WORDS = st.lists(st.sampled_from(["is", "Bob", ",", ".", "bo", " ", "\n", "plum", "the"]), max_size=8).map("".join)


@given(begun=WORDS, more=WORDS, answer=WORDS)
def test_a_settled_text_is_settled(begun: str, more: str, answer: str) -> None:
    if is_settled(begun, answer):
        assert exact_match(begun + more, answer) == exact_match(begun, answer)


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
        (row,) = decode_batch(model, [Row(cache, logits)], 3, stop_tokens(model))
        text = tokenizer.decode(row.tokens, skip_special_tokens=True)
        if exact_match(text, text):
            found.append(example._replace(answer=text))
    return found


def worker(model, tokenizer, examples, plan) -> LocalExecutor:
    recipe = CoalitionRecipe("", "cpu", "float32", 2, tuple(examples), Terms(max_new_tokens=3), plan)
    return LocalExecutor(recipe.worker(model, tokenizer))


def test_validation_examples() -> None:
    examples = generated_examples(6)
    assert len(examples) == 6
    assert len({example.document for example in examples}) == 2
    assert examples[:4] == generated_examples(4)
    for count, tokens in ((0, 512), (4, 90)):
        with pytest.raises(ShapleyError):
            generated_examples(count, tokens)
    with pytest.raises(ShapleyError, match="no validation examples"):
        CoalitionUtility(None, None, [], Terms())  # type: ignore[arg-type]
    with pytest.raises(ShapleyError, match="example 2 has an empty answer"):
        CoalitionUtility(None, None, [examples[0], examples[1]._replace(answer=" ")], Terms())  # type: ignore[arg-type]


# --- the run ---------------------------------------------------------------------------------------------------


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
