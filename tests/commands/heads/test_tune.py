"""`winnow heads tune`: values are chosen on some documents, confirmed on others, and no answer is lost."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import winnow
from winnow.bundled import HEADS_PATH
from winnow.cli import main
from winnow.commands.heads import tune as tune_command
from winnow.estimate.tune import answering as answering_module
from winnow.heads import HeadScores
from winnow.tasks import generate_document

pytestmark = pytest.mark.usefixtures("one_thread")


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


def test_values_are_chosen_by_any_metric(tune):
    code, _, err = tune("--metric", "token_f1")
    assert code == 0, err
    found = json.loads(Path("choice.json").read_text())
    assert found["protocol"]["metric"] == "token_f1"
    assert any(b["right"] % 1 for each in found["curve"] for b in each["budgets"].values())
    code, _, err = tune("--force")
    assert (code, "metric (there" in " ".join(err.split())) == (1, True)


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


def test_a_path_with_marks_is_quoted_for_the_method_and_the_shell(tune):
    path = "it's $mine, v2 (x).safetensors"
    HeadScores(torch.rand(4, 4, generator=torch.Generator().manual_seed(0)) + 0.1, "cokv").save(path)
    code, out, err = tune("--scores", path, "--values", "1,3", "--documents", "2", method="cokv")
    assert code == 0, err
    found = json.loads(Path("choice.json").read_text())
    assert winnow.method(found["method"], 64).allocator.head_scores == HeadScores.load(path)
    line = out.strip().splitlines()[-1]
    said = subprocess.run(["sh", "-c", f"printf '%s\\n' {line}"], capture_output=True, text=True, check=True)
    assert said.stdout.splitlines() == ["winnow", "run", "--method", found["method"]]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--values", "1.2,many"), "'many' is not a list of values of beta"),
        (("--values", "0.5"), "beta must be a number of at least 1"),
        (("--budgets", "1"), "budget"),
        (("--budgets", ","), "has no budget"),
        (("--split", "0.01"), "leaves none for the validation"),
        (("--examples", "empty.jsonl"), "has no questions"),
        (("--examples", "unanswered.jsonl"), "unanswered.jsonl, line 1: there is no right answer"),
        (("--scores", "small.safetensors"), "has 2 layers with 4 KV heads, but the model has 4 compressed layers"),
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


def test_a_picture_that_cannot_be_drawn_is_told_before_anything_is_answered(tune, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setattr(tune_command.Answering, "tally", None)
    code, _, err = tune("--picture", "curve.png")
    assert code == 1
    assert "Pictures need matplotlib" in err


def test_generated_questions_are_for_the_bundled_model_and_need_no_split(tune, monkeypatch, capsys):
    code = main(["heads", "tune", "--method", "cokv", "--out", "x.json", "--split", "0.5"])
    assert code == 2
    assert "divides the documents of --examples" in " ".join(capsys.readouterr().err.split())
    Path("choice.json").write_text("{}")
    code, _, err = tune()
    assert code == 1
    assert "choice.json exists" in err
