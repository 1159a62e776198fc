"""`winnow heads needle`: a table from the command line, resumed runs, wrong usage."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import torch

from support.clocks import SetClock
from support.needles import BUNDLED, chatty_tokenizer, other_weights, small_plan
from winnow.bundled import MODEL_PATH
from winnow.cli import main
from winnow.commands.failures import FAILED, USAGE
from winnow.commands.heads.needle import reads_prose
from winnow.commands.heads.needle_progress import watching
from winnow.commands.pace import clock_time
from winnow.estimate.journal import Journal
from winnow.estimate.needle import run as running
from winnow.estimate.needle.effort import Effort
from winnow.estimate.needle.examples import read_examples
from winnow.estimate.needle.generate import answer
from winnow.estimate.needle.settings import NeedleKind
from winnow.heads import HeadScores

pytestmark = pytest.mark.usefixtures("one_thread")


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
    assert "another configuration, which differs in seed" in err


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
    ("arguments", "code", "said"),
    [
        (["--out", "x.json"], 1, "call it x.safetensors"),
        (["--lengths", "0,9000"], 1, "but the model reads at most 2,048 tokens"),
        (["--lengths", "a,b"], 2, "not a list of whole numbers"),
        (["--lengths", "-5,10"], 2, "cannot be negative"),
        (["--context", "9000"], 1, "--context is 9,000, but the model reads at most 2,048"),
        (["--haystack", "nowhere.txt"], 1, "There is no file nowhere.txt"),
        (["--forms", "prose"], 1, "does not know the words"),
        (["--kind", "r3"], 2, "r3"),
        (["--repeat"], 2, "--repeat: it repeats the text of --haystack; give one."),
        (["--seed", str(2**63)], 2, "'--seed': 9223372036854775808 has more than 64 bits"),
        (["--seed", "one"], 2, "'--seed': 'one' is not a whole number"),
    ],
)
def test_wrong_usage_is_found_before_the_model_is_loaded(needle, monkeypatch, arguments, code, said):
    monkeypatch.setattr("winnow.commands.loading.load_model", lambda *_: pytest.fail("the model was loaded"))
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


def test_forms_follow_what_the_tokenizer_knows():
    assert not reads_prose(BUNDLED.tokenizer)
    assert reads_prose(chatty_tokenizer())


def test_a_model_that_answers_nothing_is_stopped_early(needle, monkeypatch):
    made = []
    monkeypatch.setattr(running, "answer", lambda *_: made.append(1) or "no idea")
    arguments = ("--kind", "er", "--out", "x.safetensors", "--lengths", "0,120", "--depths", "2")
    code, _, err = needle(*arguments)
    assert (code, len(made)) == (1, 10)
    assert "None of the first 10 of 30 prompts was answered right" in err
    assert "given: no idea" in err
    assert "--keep-going; the journal has the first" in err
    code, _, err = needle(*arguments, "--keep-going")
    assert (code, len(made)) == (1, 30)
    assert "None of 40 runs was answered right" in err


def test_noise_is_written_only_where_that_is_wanted(needle, monkeypatch):
    """R sees next to nothing in this model: ten answers, all right, tell no head from another."""
    arguments = ("--kind", "r", "--out", "r.safetensors", "--lengths", "0", "--depths", "1")
    code, _, err = needle(*arguments)
    assert code == 1
    assert "10 of 10 runs answered right: the halves of them agree no better than chance" in err
    assert "r.journal.jsonl keeps every run: the same command with --keep-noise" in err
    assert not Path("r.safetensors").exists()
    monkeypatch.setattr(running, "answer", lambda *_: pytest.fail("a run was repeated"))
    code, out, err = needle(*arguments, "--keep-noise")
    assert code == 0, err
    assert "halves of them agree: rank correlation" in out
    assert HeadScores.load("r.safetensors").samples == 10


def test_one_right_run_is_no_table(needle):
    fact = {"needle": "The gift of the tower is fig.", "question": "What is the gift of the tower?", "answer": "is fig"}
    Path("mine.jsonl").write_text(json.dumps(fact))
    arguments = ("--kind", "er", "--out", "x.safetensors", "--examples", "mine.jsonl", "--lengths", "0")
    code, _, err = needle(*arguments)
    assert code == 1
    assert "5 of 5 runs answered right: too little to tell the scores from noise" in err
    code, out, _ = needle(*arguments, "--keep-noise")
    assert code == 0
    assert "5 of 5 runs count; there are no two prompts to compare" in out


def test_the_estimate_comes_after_the_longest_prompt_and_goes_by_tokens(capsys):
    plan = small_plan(NeedleKind.ER, (0, 400), 3)
    clock = SetClock()
    with watching(plan, plan.places, Effort(0.001), clock=clock) as watch:
        for place in plan.places:
            clock.wait(Effort(0.001)(place.tokens) / 20)
            watch.prompt(place, known=False)
            watch.runs([])
    first, estimate, *lines, last = capsys.readouterr().err.splitlines()
    tokens = [place.tokens for place in plan.places]
    seconds = sum(map(Effort(0.001), tokens)) / 20
    told = f"{len(tokens)} prompts of {min(tokens)} to {max(tokens)} tokens, {sum(tokens):,} in all"
    left = clock_time(seconds - Effort(0.001)(tokens[0]) / 20)
    assert estimate == f"Needles (er): {told}; about {left} left."
    assert len(lines) >= 2
    # Exact, because the work goes on as the effort says.
    for line in (first, *lines):
        done, rest = re.search(r"([\d:]+) so far, about ([\d:]+) left", line).groups()
        assert sum(map(seconds_of, (done, rest))) == pytest.approx(seconds, abs=2)
    assert last.startswith(f"Needles, 0 of 0 right: {sum(tokens):,} of {sum(tokens):,} tokens")


def test_workers_that_start_have_no_part_in_the_estimate(capsys):
    """A worker loads for ten minutes, and then reads at an even pace."""
    plan, effort = small_plan(NeedleKind.ER, (0, 400), 3), Effort(0.0)
    clock = SetClock()
    with watching(plan, plan.places, effort, starting=1, clock=clock) as watch:
        clock.wait(600)
        for place in plan.places[:2]:
            clock.wait(effort(place.tokens) / 20)
            watch.prompt(place, known=False)
    (estimate,) = [line for line in capsys.readouterr().err.splitlines() if " in all; " in line]
    left = sum(effort(place.tokens) for place in plan.places[2:]) / 20
    assert estimate.endswith(f"about {clock_time(left)} left.")


def seconds_of(time: str) -> int:
    minutes, seconds = time.split(":")
    return 60 * int(minutes) + int(seconds)


def test_short_work_needs_no_estimate(capsys):
    plan = small_plan(NeedleKind.ER, (0,), 1)
    with watching(plan, plan.places, Effort(0.0), clock=SetClock()) as watch:
        for place in plan.places:
            watch.prompt(place, known=False)
    assert capsys.readouterr().err == ""


def test_shards_merge_to_the_whole(needle):
    assert needle("--kind", "er", *QUICK, "--out", "whole.safetensors")[0] == 0
    for shard in ("1/2", "2/2"):
        code, out, _ = needle("--kind", "er", *QUICK, "--out", "s.safetensors", "--shard", shard)
        assert code == 0
        assert "one shard, for winnow heads merge" in out
    assert not Path("s.safetensors").exists()
    journals = ["s.shard-1-of-2.journal.jsonl", "s.shard-2-of-2.journal.jsonl"]
    first, second = (len(Journal.existing(Path(name)).records()) for name in journals)
    assert first
    assert second
    assert main(["heads", "merge", journals[0], "--out", "m.safetensors"]) == FAILED
    assert main(["heads", "merge", *journals, "--out", "m.safetensors"]) == 0
    assert Path("m.safetensors").read_bytes() == Path("whole.safetensors").read_bytes()
    assert main(["heads", "merge", *journals, "--out", "q.safetensors", "--per", "query"]) == 0
    assert HeadScores.load("q.safetensors").grouped(4).values.equal(HeadScores.load("m.safetensors").values)
    for option in (["--halves", "first"], ["--keep-missed"]):
        code = main(["heads", "merge", *journals, "--out", "n.safetensors", *option])
        assert (code, Path("n.safetensors").exists()) == (USAGE, False)
    code, _, err = needle("--kind", "er", *QUICK, "--out", "t.safetensors", "--shard", "1/999")
    assert "--keep-missed: is for journals of winnow heads cokv." in err
    assert code == FAILED
    assert "cannot be divided among" in err


@pytest.mark.slow
def test_processes_give_the_same_file(needle):
    assert needle("--kind", "r2", *QUICK, "--out", "one.safetensors")[0] == 0
    workers = ("--executor", "processes", "--workers", "2")
    assert needle("--kind", "r2", *QUICK, "--out", "two.safetensors", *workers)[0] == 0
    assert Path("two.safetensors").read_bytes() == Path("one.safetensors").read_bytes()


def test_the_journal_knows_the_weights(needle, tmp_path):
    """Weights that are replaced in place are told; the scores of the old ones never come back under their name."""
    model = tmp_path / "model"
    shutil.copytree(MODEL_PATH, model)
    command = ("--kind", "er", "--model", str(model), "--lengths", "0", "--depths", "1", "--keep-noise")
    assert needle(*command, "--out", "a.safetensors")[0] == 0
    other = other_weights(tmp_path / "other")
    shutil.copy(other / "model.safetensors", model / "model.safetensors")
    before = Path("a.safetensors").read_bytes()
    code, _, err = needle(*command, "--out", "a.safetensors", "--force")
    assert code == FAILED
    assert "holds work of another configuration, which differs in weights" in err
    assert Path("a.safetensors").read_bytes() == before
