"""`winnow heads tune`: values are chosen on some documents, confirmed on others, and no answer is lost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import winnow
from winnow.bundled import HEADS_PATH
from winnow.cli import main
from winnow.commands.heads import tune as tune_command
from winnow.estimate.tune import (
    KNOBS,
    Point,
    Setting,
    Tally,
    Tunable,
    TuneError,
    best,
    curve,
    divided,
    generated,
    overlap,
    pages_of,
    wilson,
)
from winnow.estimate.tune import answering as answering_module
from winnow.estimate.tune.intervals import Interval
from winnow.heads import HeadScores
from winnow.tasks import generate_document

pytestmark = pytest.mark.usefixtures("one_thread")


# --- values -----------------------------------------------------------------------------------------------------------


def test_values_are_those_of_the_papers_and_small_ones_for_few_heads():
    assert KNOBS[Tunable.ER].values(16) == (1.005, 1.01, 1.1, 1.2, 1.5, 2, 5, 10)
    assert KNOBS[Tunable.COKV].values(256) == (1, 5, 10, 15, 20, 30, 40)
    assert KNOBS[Tunable.COKV].values(16) == (1, 2, 3, 4, 5, 6, 8, 10, 15)
    assert KNOBS[Tunable.COKV].values(5) == (1, 2, 3, 4)


def test_values_are_read_in_their_order_and_once():
    assert KNOBS[Tunable.R].read("2, 1.2,2") == (2, 1.2)
    with pytest.raises(TuneError, match="'x' is no value of beta"):
        KNOBS[Tunable.R].read("1.2,x")
    with pytest.raises(TuneError, match=r"'1.5' is no value of alpha: give whole numbers"):
        KNOBS[Tunable.COKV].read("1.5")
    with pytest.raises(TuneError, match="alpha = 16 leaves no head: the model has 16"):
        KNOBS[Tunable.COKV].check((1, 16), 16)


def test_defaults_are_the_methods_own():
    for method, knob in KNOBS.items():
        assert getattr(winnow.method(str(method), 64).allocator, knob.parameter) == knob.default


# --- intervals and choice ---------------------------------------------------------------------------------------------


def test_intervals_are_wilsons():
    # Worked by hand for 5 of 10: (0.5 + z²/20 ± z·sqrt(0.025 + z²/400)) / (1 + z²/10).
    assert wilson(0.5, 10) == pytest.approx((0.2366, 0.7634), abs=1e-4)
    assert wilson(0.0, 20) == pytest.approx((0.0, 0.1611), abs=1e-4)
    assert wilson(1.0, 20).high == 1.0
    assert overlap(Interval(0.1, 0.3), Interval(0.3, 0.4))
    assert not overlap(Interval(0.1, 0.3), Interval(0.31, 0.4))


def point(value, *right):
    return Point(value, {str(index): Tally(count, 10) for index, count in enumerate(right)})


def test_the_best_mean_wins_and_ties_go_to_the_default_then_to_the_first():
    assert best([point(1, 3, 3), point(2, 0, 7), point(3, 3, 3)], default=1).value == 2
    assert best([point(2, 4, 2), point(1, 2, 4), point(3, 0, 1)], default=1).value == 1
    assert best([point(3, 4, 2), point(2, 2, 4)], default=1).value == 3


def test_a_curve_has_a_point_per_value():
    tallies = {Setting(value, budget): Tally(int(value), 4) for value in (2, 1) for budget in ("32", "64")}
    points = curve(tallies)
    assert [(each.value, each.accuracy, each.questions) for each in points] == [(2, 0.5, 4), (1, 0.25, 4)]
    # Asking a question at two budgets does not make two questions of it.
    assert points[0].interval == wilson(0.5, 4)


# --- documents --------------------------------------------------------------------------------------------------------


def asked(documents=10):
    return [(f"document {index % documents}", f"question {index}", "answer") for index in range(3 * documents)]


def test_questions_about_a_document_stay_together():
    pages = pages_of(asked())
    split = divided(pages, 0.3, seed=4)
    assert len(split.validation) == 3
    assert len(split.test) == 7
    assert {page.text for page in (*split.validation, *split.test)} == {page.text for page in pages}
    assert all(len(page.questions) == 3 for page in pages)
    assert divided(pages, 0.3, seed=4) == split
    assert divided(pages, 0.3, seed=5) != split
    assert sum(map(len, divided(pages, 0.5, seed=4, documents=4))) == 4


@pytest.mark.parametrize("share", [0.0, 0.01, 1.0])
def test_a_split_that_leaves_nothing_is_an_error(share):
    with pytest.raises(TuneError, match=r"leaves none for the (validation|test)"):
        divided(pages_of(asked()), share, seed=0)
    with pytest.raises(TuneError, match="no questions"):
        divided((), 0.5, seed=0)


def test_generated_splits_share_no_document():
    split, other = generated(2, tokens=256), generated(2, seed=1, tokens=256)
    texts = [page.text for one in (split, other) for part in one for page in part]
    assert len(set(texts)) == len(texts)
    with pytest.raises(TuneError, match="seeds from 0 to 99"):
        generated(2, seed=100)


# --- the command ------------------------------------------------------------------------------------------------------


@pytest.fixture
def tune(tmp_path, monkeypatch, capsys):
    """Runs the command in an empty folder with questions about four short documents; returns code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)
    pages = [generate_document(seed, 200, 1) for seed in range(4)]
    lines = [
        json.dumps({"context": page.text, "question": question.text, "answer": question.answer})
        for page in pages
        for question in page.questions
    ]
    Path("questions.jsonl").write_text("\n".join(lines))

    def run(*arguments, method="headkv-er"):
        told = ["--examples", "questions.jsonl", "--split", "0.5", "--budgets", "24,48", "--values", "1.2,2"]
        code = main(["heads", "tune", "--method", method, "--out", "choice.json", *told, *arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_a_choice_says_how_it_was_made(tune):
    code, out, err = tune("--picture", "curve.png")
    assert code == 0, err
    found = json.loads(Path("choice.json").read_text())
    assert [each["value"] for each in found["curve"]] == [1.2, 2]
    for each in found["curve"]:
        assert each["accuracy"] == pytest.approx(sum(b["accuracy"] for b in each["budgets"].values()) / 2)
        assert each["interval"][0] <= each["accuracy"] <= each["interval"][1]
    assert found["value"] == max(found["curve"], key=lambda each: each["accuracy"])["value"]
    assert found["test"]["chosen"]["value"] == found["value"]
    assert found["test"]["default"]["value"] == found["default"] == 1.2
    protocol = found["protocol"]
    assert protocol["documents"] == {"validation": 2, "test": 2}
    assert sum(protocol["questions"].values()) == len(Path("questions.jsonl").read_text().splitlines())
    assert len(protocol["scores_sha256"]) == 64
    assert protocol["versions"]["winnow"] == winnow.__version__
    assert Path("curve.png").read_bytes().startswith(b"\x89PNG")
    # The last line can be copied, and the name is that of a method.
    assert out.strip().splitlines()[-1] == f'winnow run --method "headkv-er(beta={found["value"]})"'
    assert winnow.method(found["method"], 64).allocator.beta == found["value"]


def test_an_interrupted_command_goes_on_and_loses_one_document(tune, monkeypatch):
    real, calls = answering_module.evaluate, []

    def interrupted(*arguments):
        calls.append(arguments)
        for trial in real(*arguments):
            yield trial
            if len(calls) == 2:
                raise KeyboardInterrupt

    monkeypatch.setattr(answering_module, "evaluate", interrupted)
    code, _, err = tune()
    assert code == 130
    assert "Answers about 1 document are kept in choice.journal.jsonl" in err
    calls.append(None)
    assert tune()[0] == 0
    # The second document of the validation again, and the two of the test.
    assert len(calls) == 3 + 3
    resumed = Path("choice.json").read_text()
    calls.clear()
    calls += [None, None]
    assert tune("--force")[0] == 0
    assert len(calls) == 2, "everything was known"
    assert Path("choice.json").read_text() == resumed
    code, _, err = tune("--force", "--documents", "2")
    assert code == 1
    assert 'documents (there {"validation": 2, "test": 2}, now {"validation": 1, "test": 1})' in " ".join(err.split())


def test_scores_of_a_file_are_part_of_the_line(tune):
    values = torch.rand(4, 4, generator=torch.Generator().manual_seed(0)) + 0.1
    HeadScores(values, "cokv").save("own.safetensors")
    code, out, err = tune("--scores", "own.safetensors", "--values", "1,3", "--documents", "2", method="cokv")
    assert code == 0, err
    found = json.loads(Path("choice.json").read_text())
    assert found["method"] == f"cokv(alpha={found['value']}, scores=own.safetensors)"
    assert found["method"] in out
    assert winnow.method(found["method"], 64).allocator.alpha == found["value"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--values", "1.2,many"), "'many' is no value of beta"),
        (("--values", "0.5"), "beta must be a number of at least 1"),
        (("--budgets", "1"), "budget"),
        (("--budgets", ","), "has no budget"),
        (("--split", "0.01"), "leaves none for the validation"),
        (("--examples", "empty.jsonl"), "has no questions"),
        (("--examples", "unanswered.jsonl"), "unanswered.jsonl, line 1: no answer"),
        (("--scores", "small.safetensors"), "has 2 layers with 4 KV heads, the model 4 compressed layers"),
        (("--scores", str(HEADS_PATH / "headkv-r2.safetensors")), "'headkv-er' scores are expected"),
        (("--out", "choice.txt"), "call it choice.json"),
        (("--picture", "curve.jpg"), "call it curve.png"),
    ],
)
def test_wrong_use_is_told_before_anything_is_answered(tune, monkeypatch, arguments, told):
    Path("empty.jsonl").write_text("")
    Path("unanswered.jsonl").write_text('{"context": "A text.", "question": "What is it?"}\n')
    HeadScores(torch.ones(2, 4), "headkv-er").save("small.safetensors")
    monkeypatch.setattr(tune_command.Answering, "tally", None)
    code, _, err = tune(*arguments)
    assert code in (1, 2)
    assert told in " ".join(err.split())


def test_generated_questions_are_for_the_bundled_model_and_need_no_split(tune, monkeypatch, capsys):
    code = main(["heads", "tune", "--method", "cokv", "--out", "x.json", "--split", "0.5"])
    assert code == 2
    assert "divides the documents of --examples" in " ".join(capsys.readouterr().err.split())
    Path("choice.json").write_text("{}")
    code, _, err = tune()
    assert code == 1
    assert "choice.json exists" in err
