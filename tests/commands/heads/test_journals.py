"""Journals as `winnow heads` meets them: what nobody wrote is refused by its line, in one line, before any work."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.journals import crafted, lines_of, record_of
from winnow.cli import main
from winnow.commands.failures import FAILED
from winnow.heads import HeadScores

pytestmark = pytest.mark.usefixtures("one_thread")

COMMANDS = {
    "needle": "needle --kind r --lengths 0 --depths 1 --out needle.safetensors --force --keep-noise",
    "cokv": "cokv --questions 2 --samples 8 --batch 4 --out cokv.safetensors --force --keep-noise",
    "tune": "tune --method cokv --documents 1 --values 2 --budgets 64 --out tune.json --force",
}
WORK = {
    "needle": "winnow.estimate.needle.run.answer",
    "cokv": "winnow.estimate.cokv.utility.CoalitionUtility.__call__",
    "tune": "winnow.estimate.tune.answering.evaluate",
}
ABSURD: dict[str, tuple[dict[str, Any], str]] = {
    "needle": ({"scores": [[1e308] * 8] * 4}, "scores[0][0] must be a number from 0 to 50.05, not 1e+308"),
    "cokv": ({"u": [1e308] * 8}, "u[0] must be a number from 0 to 1, not 1e+308"),
    "tune": ({"document": 1}, "document must be a whole number from 0 to 0, not 1"),
}


@pytest.fixture
def heads(winnow_run: Callable[..., tuple[int, str, str]]) -> Callable[[str], tuple[int, str]]:
    """Runs a command of `winnow heads` in an empty folder; returns its exit code and stderr."""

    def run(command: str) -> tuple[int, str]:
        code, _, err = winnow_run("heads", *command.split())
        return code, err

    return run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


@pytest.mark.parametrize("name", COMMANDS)
def test_a_journal_is_not_replaced_by_the_result(
    heads: Callable[[str], tuple[int, str]], folder: Path, name: str
) -> None:
    out = COMMANDS[name].partition("--out ")[2].split()[0]
    code, err = heads(f"{COMMANDS[name]} --journal ./{out}")
    assert code == FAILED
    assert "--out and --journal are the same file" in err
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("name", COMMANDS)
def test_absurd_and_contradicting_records_are_refused_before_any_work(
    heads: Callable[[str], tuple[int, str]], folder: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    assert heads(COMMANDS[name])[0] == 0
    journal = folder / f"{name}.journal.jsonl"
    monkeypatch.setattr(WORK[name], lambda *_, **__: pytest.fail("work was done"))
    lines = lines_of(journal)
    changes, told = ABSURD[name]
    other = {"needle": {"answer": "other"}, "cokv": {"u": [0.5] * 8}, "tune": {"right": {"2 @ 64": [True] * 16}}}[name]
    for added, text in ((changes, told), (other, f"differs from that in line {len(lines)}")):
        journal.write_bytes(b"".join([*lines, crafted(journal, {**record_of(lines[-1]), **added})]))
        before = journal.read_bytes()
        code, err = heads(COMMANDS[name])
        assert code == FAILED
        assert f"{name}.journal.jsonl, line {len(lines) + 1}: " in err
        assert text in err
        assert err.count("\n") == 1
        assert journal.read_bytes() == before
    # The same once more is no contradiction.
    journal.write_bytes(b"".join([*lines, lines[1]]))
    assert heads(COMMANDS[name])[0] == 0


def test_merging_names_file_and_line(heads: Callable[[str], tuple[int, str]], folder: Path) -> None:
    assert heads(COMMANDS["cokv"])[0] == 0
    whole = HeadScores.load("cokv.safetensors")
    journal, copy = folder / "cokv.journal.jsonl", folder / "copy.jsonl"
    merge = "merge cokv.journal.jsonl copy.jsonl --out m.safetensors --force --keep-noise"
    copy.write_bytes(journal.read_bytes())
    assert heads(merge)[0] == 0
    assert HeadScores.load("m.safetensors") == whole
    lines = lines_of(journal)
    copy.write_bytes(b"".join([*lines, crafted(journal, {**record_of(lines[-1]), "batch": -1})]))
    code, err = heads(merge)
    assert code == FAILED
    assert f"copy.jsonl, line {len(lines) + 1}: batch must be a whole number" in err
    copy.write_bytes(lines[0] + crafted(journal, {**record_of(lines[-1]), "u": [0.5] * 8}))
    code, err = heads(merge)
    assert code == FAILED
    assert "copy.jsonl: Two journals have different values for batch 1 of example 1" in err


def test_merging_believes_no_configuration(heads: Callable[[str], tuple[int, str]], folder: Path) -> None:
    from winnow.estimate.journal import Journal

    assert heads(COMMANDS["cokv"])[0] == 0
    config = Journal.existing(folder / "cokv.journal.jsonl").config
    for changes, told in (
        ({"task": "tune"}, 'task must be "cokv", not "tune"'),
        ({"players": 17}, "4 layers of 4 heads are not 17 players"),
        ({"sizes": []}, "sizes must be a list of some values"),
        ({"pairs": 0}, "pairs must be a whole number"),
        ({"balanced": 1}, "balanced must be true or false"),
        ({"examples": 10**12}, "examples must be a whole number"),
    ):
        Journal.open(folder / "x.jsonl", {**config, **changes})
        code, err = heads("merge x.jsonl --out m.safetensors")
        assert code == FAILED
        assert f"x.jsonl, line 1: {told}" in err
        (folder / "x.jsonl").unlink()


def test_two_commands_do_not_write_one_journal(
    heads: Callable[[str], tuple[int, str]], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fcntl

    monkeypatch.chdir(folder)
    with (folder / "needle.journal.jsonl").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        code, err = heads(COMMANDS["needle"])
    assert code == FAILED
    assert "needle.journal.jsonl is being written by another process" in err
    assert main(["heads", *COMMANDS["needle"].split()]) == 0
