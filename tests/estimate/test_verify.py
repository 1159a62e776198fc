"""`winnow heads verify`: true files pass, files that were changed do not, others are told apart."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from winnow.bundled import HEADS_PATH, MODEL_PATH
from winnow.cli import main
from winnow.estimate.cokv.examples import generated_examples
from winnow.estimate.cokv.plan import Sampled
from winnow.estimate.cokv.recipe import CoalitionRecipe
from winnow.estimate.cokv.sampling import PlayerSplits
from winnow.estimate.cokv.settings import Terms
from winnow.estimate.errors import NotVerifiable, VerifyError
from winnow.estimate.journal import Journal
from winnow.estimate.needle.examples import TaskExamples
from winnow.estimate.needle.haystack import TaskHaystack
from winnow.estimate.needle.plan import Cell, NeedlePlan
from winnow.estimate.needle.run import Outcome, mean_scores, run_needles
from winnow.estimate.needle.settings import NeedleKind, Settings, spread_depths
from winnow.estimate.verify.agreement import Fresh, check_agreement
from winnow.estimate.verify.coalitions import Redrawn, expected_batches
from winnow.estimate.verify.needles import choose, least_right, mean_and_error
from winnow.estimate.verify.settings import cokv_settings, needle_settings
from winnow.heads import HeadScores, read_scores
from winnow.models import load_model, open_model

pytestmark = pytest.mark.usefixtures("one_thread")

COKV_SETTINGS = {
    "players": 16,
    "sizes": [8],
    "seed": 0,
    "examples": 4,
    "question_tokens": 256,
    "window": 8,
    "answer_tokens": 24,
}


@pytest.fixture(scope="module")
def source():
    return open_model(MODEL_PATH)


@pytest.fixture(scope="module")
def model(source):
    return load_model(source)


@pytest.fixture(scope="module")
def needles(source, model, tmp_path_factory):
    """A small file as `winnow heads needle` writes it."""
    folder = tmp_path_factory.mktemp("needles")
    settings = Settings(NeedleKind.ER, (0, 192), spread_depths(2), 0)
    plan = NeedlePlan(source.tokenizer, settings, TaskExamples().examples(NeedleKind.ER, 0), TaskHaystack(0))
    journal = Journal.open(folder / "runs.jsonl", plan.config())
    found = mean_scores(plan, list(run_needles(model, plan, journal)), model="winnow-bundled")
    return found.grouped(4).save(folder / "er.safetensors")


@pytest.fixture(scope="module")
def coalitions(source, model, tmp_path_factory):
    """A small file as `winnow heads cokv` writes it."""
    plan = Sampled(PlayerSplits(16, (8,), 0), 32)
    recipe = CoalitionRecipe(source.name, "cpu", "auto", 4, generated_examples(4, 256), Terms(8), plan)
    redrawn = Redrawn(recipe.worker(model, source.tokenizer), plan, 4, 4)
    list(redrawn.evaluate())
    values = redrawn.fresh(128).values.view(4, 4)
    asked = json.dumps(COKV_SETTINGS)
    table = HeadScores(values, "cokv", model="winnow-bundled", seed=0, samples=128, settings=asked)
    return table.save(tmp_path_factory.mktemp("cokv") / "cokv.safetensors")


@pytest.fixture
def verify(capsys):
    """Runs the command; returns exit code, stdout, stderr."""

    def run(path, *arguments):
        code = main(["heads", "verify", str(path), *arguments])
        captured = capsys.readouterr()
        return code, " ".join(captured.out.split()), " ".join(captured.err.split())

    return run


def asking(table, **changes):
    """The same table with other settings."""
    return replace(table, settings=json.dumps({**json.loads(table.settings), **changes}), path=None)


def swapped(table, one, other):
    values = table.values.clone()
    values[one], values[other] = table.values[other], table.values[one]
    return replace(table, values=values, path=None)


# --- the command ------------------------------------------------------------------------------------------------------


def test_true_needle_scores_pass_and_swapped_ones_do_not(verify, needles, tmp_path):
    code, out, err = verify(needles)
    assert code == 0, (out, err)
    assert "30 of 40 runs again, 30 right" in out
    assert "Consistent." in out
    changed = swapped(read_scores(needles), (1, 0), (3, 1)).save(tmp_path / "changed.safetensors")
    code, out, _ = verify(changed)
    assert code == 1
    assert "Not consistent: " in out
    assert "deviation of layer" in out


def test_all_runs_again_find_any_change(verify, needles, tmp_path):
    code, out, _ = verify(needles, "--share", "1")
    assert code == 0, out
    assert "rank correlation 1.000" in out
    table = read_scores(needles)
    # The two most alike of the layer that does everything.
    order = table.values[1].argsort().tolist()
    changed = swapped(table, (1, order[0]), (1, order[1])).save(tmp_path / "changed.safetensors")
    assert verify(changed, "--share", "1")[0] == 1


def test_true_coalition_scores_pass_and_swapped_ones_do_not(verify, coalitions, tmp_path):
    code, out, err = verify(coalitions, "--share", "0.5")
    assert code == 0, (out, err)
    assert "64 new samples (seed 1); the file has 128" in out
    table = read_scores(coalitions)
    flat = table.values.flatten()
    high, low = (divmod(int(place), 4) for place in (flat.argmax(), flat.argmin()))
    changed = swapped(table, high, low).save(tmp_path / "changed.safetensors")
    code, out, _ = verify(changed, "--share", "0.5")
    assert code == 1
    assert "Not consistent" in out


def test_the_files_own_coalitions_are_no_check(verify, coalitions):
    code, _, err = verify(coalitions, "--seed", "0")
    assert code == 2
    assert "the file's own coalitions" in err


@pytest.mark.parametrize(
    "command",
    [
        ["needle", "--kind", "er", "--lengths", "0,120", "--depths", "3", "--max-new-tokens", "40"],
        ["cokv", "--questions", "4", "--samples", "128", "--sizes", "n/4,n/2"],
    ],
    ids=lambda command: command[0],
)
def test_files_with_notes_of_ones_own_are_verifiable(verify, tmp_path, command):
    path = tmp_path / "own.safetensors"
    assert main(["heads", *command, "--notes", "mine", "--out", str(path)]) == 0
    assert HeadScores.load(path).notes == "mine"
    code, out, err = verify(path)
    assert code == 0, (out, err)
    assert "Consistent." in out


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        ({"samples": None}, "does not say its number of samples"),
        ({"settings": ""}, "does not say its settings, so its runs cannot be repeated"),
        ({"method": "duoattention"}, "holds duoattention scores"),
        ({"method": "cokv"}, "does not say its sizes"),
    ],
)
def test_files_that_do_not_say_how_they_were_made_end_with_2(verify, needles, tmp_path, facts, told):
    changed = replace(read_scores(needles), path=None, **facts).save(tmp_path / "changed.safetensors")
    code, _, err = verify(changed)
    assert code == 2
    assert told in err


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"examples": 3}, "comes from 3 examples, and here are 10"),
        ({"seed": "0"}, "does not say its seed"),
        ({"examples": 0}, "does not say its examples"),
        ({"lengths": [0, True]}, "does not say its lengths"),
        ({"depths": [0, 2]}, "does not say its depths"),
        ({"depths": 2}, "does not say its depths"),
        ({"answer_tokens": None}, "does not say its answer tokens"),
    ],
)
def test_settings_that_nothing_can_be_repeated_from_end_with_2(verify, needles, tmp_path, asked, told):
    changed = asking(read_scores(needles), **asked).save(tmp_path / "changed.safetensors")
    code, _, err = verify(changed)
    assert code == 2
    assert told in err


def test_scores_of_another_model_are_refused(verify, needles, tmp_path):
    table = read_scores(needles)
    other = replace(table, model="org/Other", path=None).save(tmp_path / "other.safetensors")
    code, _, err = verify(other)
    assert code == 1
    assert "scores of org/Other" in err
    small = replace(table, values=table.values[:2], path=None).save(tmp_path / "small.safetensors")
    code, _, err = verify(small)
    assert code == 1
    assert "2 layers of 4 heads, the model 4 of 4" in err
    code, _, err = verify(needles, "--share", "0")
    assert code == 2
    assert "--share" in err


# --- what the parts do ------------------------------------------------------------------------------------------------


def test_shipped_files_carry_what_verifying_needs():
    for kind in NeedleKind:
        settings = needle_settings(read_scores(HEADS_PATH / f"headkv-{kind}.safetensors"))
        assert settings[:6] == (kind, 0, 10, (0, 512, 1024, 1536, 2048), spread_depths(10), 50)
        assert settings.runs == 500
    settings = cokv_settings(read_scores(HEADS_PATH / "cokv.safetensors"))
    assert settings == (0, 16, (2, 4, 6, 8), 16_384, 24, 512, 8, 24)


def test_coalition_sizes_that_do_not_fit_the_table_are_not_believed():
    table = HeadScores(torch.ones(2, 2), "cokv", seed=0, samples=8, settings=json.dumps(COKV_SETTINGS))
    with pytest.raises(NotVerifiable, match="does not fit its 4 heads"):
        cokv_settings(table)
    for sizes in ([5], [0, 2], [2, 2]):
        with pytest.raises(NotVerifiable, match="does not fit"):
            cokv_settings(asking(table, players=4, sizes=sizes))
    assert cokv_settings(asking(table, players=4, sizes=[1, 2], question_tokens=None)).tokens is None


def test_true_tables_pass_whatever_the_errors_and_changed_ones_fail():
    generator = torch.Generator().manual_seed(3)
    table = HeadScores(torch.rand(4, 4, generator=generator, dtype=torch.float64) ** 3, "headkv-er")
    errors = torch.full((4, 4), 0.02, dtype=torch.float64)

    def fresh():
        return Fresh(table.values + errors * torch.randn(4, 4, generator=generator, dtype=torch.float64), errors, 49)

    assert not any(check_agreement(table, fresh(), independent=True).failures for _ in range(20))
    order = table.values.flatten().argsort()
    high, low = (divmod(int(place), 4) for place in (order[-1], order[0]))
    found = check_agreement(swapped(table, high, low), fresh(), independent=True)
    assert found.place in (high, low)
    assert any("deviation" in failure for failure in found.failures)


def test_scores_without_error_agree_up_to_rounding():
    table = HeadScores(torch.rand(4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64), "headkv-r")
    none = torch.zeros(4, 4, dtype=torch.float64)
    assert not check_agreement(table, Fresh(table.values + 1e-7, none, 9), independent=False).failures
    assert check_agreement(table, Fresh(table.values + 1e-2, none, 9), independent=False).failures


def runs(scores):
    """Outcomes of one query head per KV head from scores [n, L, H]."""
    return [Outcome(Cell(index, 0, 0.0), 1, "", each) for index, each in enumerate(scores)]


def test_errors_are_those_of_a_sample_without_replacement():
    scores = torch.rand(50, 2, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    table = HeadScores(scores.mean(dim=0), "headkv-er", samples=50)
    half = mean_and_error(table, runs(scores[:25]), 2)
    torch.testing.assert_close(half.errors, (scores[:25].var(dim=0) / 25 / 2).sqrt())
    assert not mean_and_error(table, runs(scores), 2).errors.any()
    with pytest.raises(VerifyError, match="1 of 1 runs"):
        mean_and_error(table, runs(scores[:1]), 2)


def test_a_head_that_did_not_score_in_the_sample_may_still_have_a_score():
    scores = torch.zeros(50, 1, 2, dtype=torch.float64)
    scores[::2, 0, 0] = 0.1
    table = HeadScores(torch.tensor([[0.05, 0.002]]), "headkv-r", samples=500)
    found = mean_and_error(table, runs(scores), 2)
    # One run of fifty scores 0.1, so the chance of none in fifty is about e^-1.
    assert float(found.errors[0, 1]) == pytest.approx((0.002 * 0.1 / 50 * 0.9) ** 0.5)
    assert not check_agreement(table, found, independent=False).failures


def test_right_answers_are_counted():
    assert least_right(50, 500, 500) == 49
    assert 30 < least_right(50, 500, 470) < 44


def test_samples_are_a_share_of_the_runs_but_no_fewer_than_thirty():
    cells = [Cell(index, 0, 0.0) for index in range(500)]
    chosen = choose(cells, 0.1, 0)
    assert len(set(chosen)) == 50
    assert choose(cells, 0.1, 0) == chosen != choose(cells, 0.1, 1)
    assert len(choose(cells, 0.01, 0)) == 30
    assert len(choose(cells[:20], 0.01, 0)) == 20


def test_every_head_is_in_coalitions_of_every_size():
    plan = Sampled(PlayerSplits(16, (2, 8), 0), 8)
    batches = expected_batches(plan, 0.01, 100)
    first = plan.splits.first_parts(range(batches * plan.pairs))
    assert int(first[first.sum(dim=1) == 2].sum(dim=0).min()) >= 2
