"""`winnow heads verify`: true files pass, files that were changed do not, others are told apart."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from support.tables import COKV_SETTINGS, asking, swapped
from winnow.cli import main
from winnow.commands.heads import verify_material
from winnow.estimate.cokv.examples import generated_examples, hash_of
from winnow.estimate.cokv.plan import Sampled
from winnow.estimate.cokv.recipe import CoalitionRecipe
from winnow.estimate.cokv.sampling import PlayerSplits
from winnow.estimate.cokv.settings import Terms
from winnow.estimate.journal import Journal
from winnow.estimate.needle.examples import TaskExamples
from winnow.estimate.needle.haystack import TaskHaystack
from winnow.estimate.needle.plan import NeedlePlan
from winnow.estimate.needle.run import mean_scores, run_needles
from winnow.estimate.needle.settings import NeedleKind, Settings, spread_depths
from winnow.estimate.verify.coalitions import Redrawn
from winnow.heads import HeadScores, read_scores
from winnow.models import ModelSpec, load_model

pytestmark = pytest.mark.usefixtures("one_thread")


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
    recipe = CoalitionRecipe(ModelSpec(source.name, "cpu"), 4, generated_examples(4, 256), Terms(8), plan)
    redrawn = Redrawn(recipe.worker(model, source.tokenizer), plan, 4, 4, "both")
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


def test_true_needle_scores_pass_and_swapped_ones_do_not(verify, needles, tmp_path):
    code, out, err = verify(needles)
    assert code == 0, (out, err)
    assert "30 of 40 runs again, 30 right" in out
    assert "Consistent." in out
    changed = swapped(read_scores(needles), (1, 0), (3, 1)).save(tmp_path / "changed.safetensors")
    code, out, _ = verify(changed)
    assert code == 3
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
    assert verify(changed, "--share", "1")[0] == 3


def test_true_coalition_scores_pass_and_swapped_ones_do_not(verify, coalitions, tmp_path):
    code, out, err = verify(coalitions, "--share", "0.5")
    assert code == 0, (out, err)
    assert "64 new samples (seed 1); the file has 128" in out
    table = read_scores(coalitions)
    flat = table.values.flatten()
    high, low = (divmod(int(place), 4) for place in (flat.argmax(), flat.argmin()))
    changed = swapped(table, high, low).save(tmp_path / "changed.safetensors")
    code, out, _ = verify(changed, "--share", "0.5")
    assert code == 3
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


def test_too_few_right_answers_are_a_verdict(verify, needles, tmp_path, monkeypatch):
    """The model answers nothing, where the file counts every run as right."""
    monkeypatch.setattr("winnow.estimate.needle.run.answer", lambda *_: "no idea")
    code, out, _ = verify(needles)
    assert code == 3
    assert "Not consistent: 30 of 40 runs again, 0 right, where the file counts 40 of 40 as right." in out


def test_needles_of_other_words_are_not_taken_for_the_files_own(verify, needles, tmp_path):
    table = read_scores(needles)
    for name in ("examples", "haystack"):
        changed = asking(table, **{f"{name}_hash": "0" * 16}).save(tmp_path / f"{name}.safetensors")
        code, out, err = verify(changed)
        assert (code, out) == (2, "")
        assert f"comes from other --{name} than the built-in ones: give what it was made with" in err
    example = {"needle": "The gift of the tower is fig.", "question": "What is the gift?", "answer": "is fig"}
    (tmp_path / "ten.jsonl").write_text("\n".join([json.dumps(example)] * 10))
    code, _, err = verify(needles, "--examples", str(tmp_path / "ten.jsonl"))
    assert code == 2
    assert "comes from other --examples than" in err
    (tmp_path / "hay.txt").write_text("There was rain over the castle on Monday. " * 20)
    code, _, err = verify(needles, "--haystack", str(tmp_path / "hay.txt"), "--repeat")
    assert code == 2
    assert "comes from other --haystack than" in err


def test_other_room_for_answers_is_another_prompt_but_no_other_haystack(verify, needles):
    code, out, err = verify(needles, "--max-new-tokens", "40")
    assert code == 0, (out, err)


def test_files_that_were_made_of_files_say_what_is_missing(verify, needles, tmp_path):
    for name in ("examples", "haystack"):
        changed = asking(read_scores(needles), **{f"{name}_from": "file"}).save(tmp_path / f"{name}.safetensors")
        code, _, err = verify(changed)
        assert code == 2
        assert f"comes from a file that it does not hold: give its --{name}." in err


def test_the_forms_are_those_of_the_file_and_not_of_the_tokenizer(verify, needles, tmp_path, monkeypatch):
    told = asking(read_scores(needles), examples_from="tasks", haystack_from="tasks").save(tmp_path / "a.safetensors")
    monkeypatch.setattr(verify_material, "reads_prose", lambda _: True)
    code, out, err = verify(told)
    assert code == 0, (out, err)


def test_other_questions_are_not_taken_for_the_files_own(verify, coalitions, tmp_path):
    four = hash_of(generated_examples(4, 256))
    table = read_scores(coalitions)
    code, out, err = verify(asking(table, examples_hash=four).save(tmp_path / "a.safetensors"), "--share", "0.5")
    assert code == 0, (out, err)
    code, out, err = verify(asking(table, examples_hash="0" * 16).save(tmp_path / "b.safetensors"))
    assert (code, out) == (2, "")
    assert "comes from other --examples than the built-in ones" in err


@pytest.mark.parametrize("arguments", [("--haystack", "hay.txt"), ("--repeat",)])
def test_a_haystack_is_no_option_of_coalitions(verify, coalitions, arguments):
    code, _, err = verify(coalitions, *arguments)
    assert code == 2
    assert f"{arguments[0]}: it is for scores of winnow heads needle" in err


def test_a_generated_haystack_is_not_repeated(verify, needles):
    code, _, err = verify(needles, "--repeat")
    assert code == 2
    assert "--repeat: it repeats the text of --haystack" in err


def test_a_published_table_is_not_verifiable_whichever_model_is_named(verify, tmp_path):
    path = tmp_path / "Tiny_retrieval_heads.json"
    path.write_text(json.dumps({"0-0": [1], "0-1": [2]}))
    code, _, err = verify(path)
    assert code == 2
    assert "published tables do not" in err


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
