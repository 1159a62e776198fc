"""`winnow heads cokv` and `winnow heads merge`: what they write, how they resume, and every way to use them wrongly."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from winnow.bundled import HEADS_PATH
from winnow.cli import INTERRUPTED, main
from winnow.commands.failures import FAILED, USAGE
from winnow.estimate.cokv.utility import CoalitionUtility
from winnow.estimate.errors import JournalError
from winnow.estimate.journal import Journal
from winnow.heads import HeadScores

QUICK = ["--questions", "2", "--samples", "8", "--batch", "8", "--sizes", "n/2"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def cokv(*options: str, out: str = "a.safetensors") -> int:
    return main(["heads", "cokv", "--out", out, *QUICK, *options])


def said(capsys) -> str:
    captured = capsys.readouterr()
    return " ".join((captured.out + captured.err).split())


def test_coalitions_are_worth_what_a_metric_says(capsys):
    assert cokv("--metric", "token_f1", "--keep-noise") == 0
    assert json.loads(HeadScores.load("a.safetensors").settings)["metric"] == "token_f1"
    assert "token f1 of 2 validation examples" in HeadScores.load("a.safetensors").notes
    journal = Journal.existing(Path("a.journal.jsonl"))
    assert journal.config["metric"] == "token_f1"
    assert {0 < worth < 1 for record in journal.records() for worth in record.get("u", [])} == {True, False}
    assert cokv("--force") == FAILED
    assert "metric (there" in said(capsys)
    assert main(["heads", "verify", "a.safetensors", "--share", "0.01"]) in (0, 3)
    assert cokv("--metric", "count", out="b.safetensors") == FAILED
    assert "Validation example 1: The right answer" in said(capsys)


def test_writes_a_table_and_a_journal(capsys):
    assert cokv("--notes", "mine") == 0
    table = HeadScores.load("a.safetensors")
    assert (table.method, table.model, table.shape) == ("cokv", "winnow-bundled", (4, 4))
    assert (table.samples, table.seed, table.license, table.notes) == (8, 0, "Apache-2.0", "mine")
    asked = json.loads(table.settings)
    assert len(asked.pop("examples_hash")) == 16
    assert asked == {
        "players": 16,
        "sizes": [8],
        "balanced": False,
        "seed": 0,
        "samples": 8,
        "examples": 2,
        "question_tokens": 512,
        "window": 8,
        "answer_tokens": 24,
        "dtype": "float32",
    }
    assert "8 samples" in said(capsys)
    records = Journal.existing(Path("a.journal.jsonl")).records()
    assert records[:2] == tuple({"example": number, "all_heads": 1.0, "no_heads": 0.0} for number in (0, 1))
    assert [(each["batch"], each["example"], len(each["u"])) for each in records[2:]] == [(0, 0, 16), (0, 1, 16)]


def test_resumes_after_an_interruption(capsys, monkeypatch):
    assert cokv(out="whole.safetensors") == 0
    evaluate, calls = CoalitionUtility.__call__, []

    def interrupted(self, example, masks):
        if len(calls) == 3:
            raise KeyboardInterrupt
        calls.append(example)
        return evaluate(self, example, masks)

    with monkeypatch.context() as patched:
        patched.setattr(CoalitionUtility, "__call__", interrupted)
        assert cokv() == INTERRUPTED
    assert "1 evaluated batches are kept in a.journal.jsonl; the same command goes on from there." in said(capsys)
    assert not Path("a.safetensors").exists()
    assert cokv() == 0
    assert Path("a.safetensors").read_bytes() == Path("whole.safetensors").read_bytes()


def test_a_full_disk_says_what_is_kept(capsys, monkeypatch):
    append, written = Journal.append, []

    def full(self, record):
        if len(written) == 3:
            raise JournalError(f"Cannot write {self.path}: No space left on device.")
        written.append(record)
        append(self, record)

    with monkeypatch.context() as patched:
        patched.setattr(Journal, "append", full)
        assert cokv() == FAILED
    text = said(capsys)
    assert "No space left on device" in text
    assert "1 evaluated batches are kept in a.journal.jsonl; the same command goes on from there." in text
    assert cokv() == 0


def test_more_samples_go_on_from_the_journal():
    assert cokv() == 0
    before = Path("a.journal.jsonl").read_text()
    assert cokv("--samples", "16", "--force") == 0
    assert Path("a.journal.jsonl").read_text().startswith(before)
    assert HeadScores.load("a.safetensors").samples == 16


def test_prompts_without_room_in_memory_change_nothing_and_leave_nothing():
    assert cokv(out="b.safetensors") == 0
    left = Path("a.journal.jsonl.prompts")
    left.mkdir()
    (left / "of-a-killed-command.safetensors").touch()
    assert cokv("--prompt-memory", "1KiB") == 0
    assert not left.exists()
    assert Path("a.safetensors").read_bytes() == Path("b.safetensors").read_bytes()


def test_shards_merge_to_the_whole(capsys):
    assert cokv() == 0
    for shard in ("1/2", "2/2"):
        assert cokv("--shard", shard, out="s.safetensors") == 0
    journals = ["s.shard-1-of-2.journal.jsonl", "s.shard-2-of-2.journal.jsonl"]
    assert main(["heads", "merge", journals[0], "--out", "m.safetensors"]) == FAILED
    assert "1 of 2 validation examples were not evaluated" in said(capsys)
    assert main(["heads", "merge", *journals, "--out", "m.safetensors"]) == 0
    assert Path("m.safetensors").read_bytes() == Path("a.safetensors").read_bytes()
    assert main(["heads", "merge", *journals, "--out", "n.safetensors", "--per", "query"]) == USAGE
    assert "--per: is for journals of winnow heads needle" in said(capsys)
    assert cokv("--seed", "1", "--shard", "2/2", out="t.safetensors") == 0
    assert main(["heads", "merge", journals[0], "t.shard-2-of-2.journal.jsonl", "--out", "n.safetensors"]) == FAILED
    assert "differ in seed" in said(capsys)


def test_examples_of_ones_own(capsys):
    fact = {"context": "The password of the harbor is lemon.", "question": "What is the password of the harbor?"}
    Path("e.jsonl").write_text(json.dumps({**fact, "answer": "is lemon"}) + "\n")
    options = ["--examples", "e.jsonl", "--samples", "8", "--batch", "8", "--window", "0"]
    assert main(["heads", "cokv", "--out", "e.safetensors", *options]) == FAILED
    noise = "8 samples: the halves of them agree no better than chance (no rank correlation over 16 heads"
    text = said(capsys)
    assert noise in text
    assert "e.journal.jsonl keeps every coalition; the same command goes on from there with more --samples" in text
    assert not Path("e.safetensors").exists()
    merge = ["heads", "merge", "e.journal.jsonl", "--out", "e.safetensors"]
    assert main(merge) == FAILED
    assert noise in said(capsys)
    assert main([*merge, "--keep-noise"]) == 0
    assert main(["heads", "cokv", "--out", "e.safetensors", *options, "--keep-noise", "--force"]) == 0
    asked = json.loads(HeadScores.load("e.safetensors").settings)
    assert (asked["examples"], asked["question_tokens"], asked["window"]) == (1, None, 0)
    for content, message in (
        ("\n", "f.jsonl has no questions"),
        (json.dumps({**fact, "answer": ""}), '"answer" must be a non-empty text'),
        (json.dumps(fact), "there is no right answer"),
        (json.dumps({**fact, "answer": "is plum"}), "None of the 1 validation examples is answered right"),
    ):
        Path("f.jsonl").write_text(content + "\n")
        code = main(["heads", "cokv", "--out", "f.safetensors", *options, "--examples", "f.jsonl"])
        assert code == FAILED
        assert message in said(capsys)
        assert not Path("f.safetensors").exists()


def test_the_first_parts_alone_are_another_table_from_the_same_journal(capsys):
    more = ("--samples", "64", "--keep-noise")
    assert cokv(*more) == 0
    before = Path("a.journal.jsonl").read_bytes()
    assert cokv(*more, "--halves", "first", "--force") == 0
    assert Path("a.journal.jsonl").read_bytes() == before
    first = HeadScores.load("a.safetensors")
    assert json.loads(first.settings)["halves"] == "first"
    assert "(first parts only)" in first.notes
    merge = ["heads", "merge", "a.journal.jsonl", "--keep-noise", "--out"]
    assert main([*merge, "m.safetensors", "--halves", "first"]) == 0
    assert Path("m.safetensors").read_bytes() == Path("a.safetensors").read_bytes()
    assert main([*merge, "b.safetensors"]) == 0
    both = HeadScores.load("b.safetensors")
    assert "halves" not in json.loads(both.settings)
    assert not both.values.equal(first.values)
    assert main(["heads", "verify", "a.safetensors", "--share", "0.1"]) in (0, 3)


def test_theorem_2_sets_the_samples(capsys):
    command = ["heads", "cokv", "--out", "a.safetensors", "--questions", "2", "--batch", "8", "--keep-noise"]
    assert main([*command, "--epsilon", "1", "--delta", "0.1"]) == 0
    # 2 · ln 20, rounded up to a batch.
    assert HeadScores.load("a.safetensors").samples == 8
    assert "with 90%; samples needed for (0.1, 0.1): 600." in said(capsys)
    assert main([*command, "--epsilon", "1", "--samples", "8", "--force"]) == USAGE
    assert "sets the number of samples, and so does --samples" in said(capsys)
    assert main([*command, "--epsilon", "-1", "--force"]) == FAILED
    assert "epsilon must be above 0" in said(capsys)


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--sizes", "half"], USAGE, "'half' is not a coalition size"),
        (["--sizes", "17"], FAILED, "between 1 and the number of heads, 16"),
        (["--sizes", "1"], FAILED, "8 samples leave some head out of all coalitions of some size (1, 15 of 16 heads)"),
        (["--sizes", "n/4", "--balanced"], FAILED, "Balanced splits need n/2"),
        (["--shard", "3/2"], USAGE, "not of the form I/N"),
        (["--shard", "1/3"], FAILED, "2 validation examples cannot be divided among 3 shards"),
        (["--examples", "e.jsonl"], USAGE, "counts generated questions"),
        (["--max-new-tokens", "1600"], FAILED, "an answer of 1,600; the model reads 2,048 at most"),
        (["--prompt-memory", "10"], USAGE, "'10' is not a number of bytes"),
        (["--overlap", "2"], FAILED, "overlap must be"),
        (["--out", "a.json"], FAILED, "call it a.safetensors"),
        (["--model", "elsewhere/model/x"], FAILED, "give --examples"),
    ],
)
def test_what_is_refused_leaves_nothing_behind(options, code, message, capsys):
    assert cokv(*options) == code
    assert message in said(capsys)
    assert not list(Path().iterdir())


def test_an_existing_file_and_another_configuration_are_kept(capsys):
    assert cokv() == 0
    before = Path("a.journal.jsonl").read_bytes()
    assert cokv() == FAILED
    assert "a.safetensors exists" in said(capsys)
    assert cokv("--force", "--window", "4") == FAILED
    assert "differs in window (there 8, now 4)" in said(capsys)
    assert Path("a.journal.jsonl").read_bytes() == before


def test_the_scores_that_ship():
    table = HeadScores.load(HEADS_PATH / "cokv.safetensors")
    assert (table.method, table.heads, table.model, table.shape) == ("cokv", "kv", "winnow-bundled", (4, 4))
    assert table.samples is not None
    assert table.samples >= 1000
    # Layer 1 looks the answers up; without it nothing is found.
    assert int(table.values.sum(dim=1).argmax()) == 1


FACTS = [("harbor", "is lemon"), ("tower", "is plum"), ("garden", "is lemon"), ("bakery", "is plum")]


def written_facts(facts: list[tuple[str, str]]) -> None:
    """Questions about documents in which every password is lemon."""
    lines = [
        {"context": f"The password of the {place} is lemon.", "question": f"What is the password of the {place}?"}
        | {"answer": answer}
        for place, answer in facts
    ]
    Path("e.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_a_model_that_answers_nothing_is_told_after_two_answers_an_example(capsys, monkeypatch):
    written_facts([fact for fact in FACTS if fact[1] == "is plum"])
    asked = []
    evaluate = CoalitionUtility.__call__

    def counted(self, example, masks):
        asked.append(len(masks))
        return evaluate(self, example, masks)

    monkeypatch.setattr(CoalitionUtility, "__call__", counted)
    command = ["heads", "cokv", "--out", "e.safetensors", "--examples", "e.jsonl", "--samples", "8", "--batch", "8"]
    assert main(command) == FAILED
    assert "None of the 2 validation examples is answered right with all heads" in said(capsys)
    assert asked == [2, 2]
    assert main([*command, "--keep-missed"]) == FAILED
    text = said(capsys)
    assert "2 of 2 examples are answered wrong with all heads and evaluated all the same: 1, 2." in text
    assert "metric is 0 for all 16 coalitions" in text
    assert asked == [2, 2, 16, 16]


def test_examples_that_the_whole_cache_misses_are_left_out(capsys):
    options = ["--samples", "16", "--batch", "8", "--window", "0", "--keep-noise", "--examples", "e.jsonl"]
    written_facts([fact for fact in FACTS if fact[1] == "is lemon"])
    assert main(["heads", "cokv", "--out", "known.safetensors", *options]) == 0
    written_facts(FACTS)
    assert main(["heads", "cokv", "--out", "some.safetensors", *options]) == 0
    assert "2 of 4 examples are answered wrong with all heads and left out (--keep-missed evaluates them): 2, 4." in (
        said(capsys)
    )
    known, some = (HeadScores.load(f"{name}.safetensors") for name in ("known", "some"))
    assert known.values.equal(some.values)
    asked = json.loads(some.settings)
    assert (asked["examples"], asked["left_out"]) == (4, [1, 3])
    assert "left_out" not in json.loads(known.settings)
    assert main(["heads", "verify", "some.safetensors", "--examples", "e.jsonl", "--share", "0.01"]) in (0, 3)
    whole = ["--keep-missed", "--force"]
    assert main(["heads", "cokv", "--out", "some.safetensors", *options, *whole]) == 0
    assert HeadScores.load("some.safetensors").values.equal(known.values / 2)


def test_shards_leave_out_what_the_whole_cache_misses(capsys):
    options = ["--samples", "16", "--batch", "8", "--window", "0", "--keep-noise", "--examples", "e.jsonl"]
    written_facts(FACTS)
    assert main(["heads", "cokv", "--out", "w.safetensors", *options]) == 0
    for shard in ("1/2", "2/2"):
        assert main(["heads", "cokv", "--out", "s.safetensors", *options, "--shard", shard]) == 0
    # The second shard has none but missed examples, and nothing to do.
    journals = ["s.shard-1-of-2.journal.jsonl", "s.shard-2-of-2.journal.jsonl"]
    assert len(Journal.existing(Path(journals[1])).records()) == 2
    assert main(["heads", "merge", *journals, "--out", "m.safetensors", "--keep-noise"]) == 0
    assert Path("m.safetensors").read_bytes() == Path("w.safetensors").read_bytes()
    assert main(["heads", "merge", *journals, "--out", "n.safetensors", "--keep-missed"]) == FAILED
    assert "2 of 4 validation examples were not evaluated" in said(capsys)


def test_questions_that_need_no_cache_are_told(capsys):
    written_facts(FACTS[:1])
    options = ["--samples", "8", "--batch", "8", "--window", "64", "--examples", "e.jsonl"]
    assert main(["heads", "cokv", "--out", "a.safetensors", *options]) == FAILED
    assert "No example is answered better with all heads than with the window alone" in said(capsys)
