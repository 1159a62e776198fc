"""The journal of finished work: nothing that was written is ever lost, whatever ends the process."""

from __future__ import annotations

import errno
import json
import os
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from winnow.estimate.cokv.ledger import Ledger
from winnow.estimate.cokv.plan import Sampled
from winnow.estimate.cokv.run import run_sampled
from winnow.estimate.cokv.sampling import PlayerSplits
from winnow.estimate.cokv.settings import StopRule
from winnow.estimate.errors import JournalError, ShapleyError
from winnow.estimate.executors.base import Done, Item
from winnow.estimate.executors.local import LocalExecutor
from winnow.estimate.journal import Journal, fingerprint

CONFIG = {"seed": 1, "sizes": [2, 4], "model": "tiny"}
RECORDS = [{"batch": batch, "example": batch % 3, "u": [0.1 * batch, 1.0]} for batch in range(5)]


def written(path: Path) -> Journal:
    journal = Journal.open(path, CONFIG)
    for record in RECORDS:
        journal.append(record)
    return journal


def test_what_was_appended_is_there_again(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "a.jsonl"
    assert written(path).records() == tuple(RECORDS)
    assert Journal.open(path, dict(reversed(CONFIG.items()))).records() == tuple(RECORDS)
    existing = Journal.existing(path)
    assert existing.config == CONFIG
    assert existing.records() == tuple(RECORDS)
    header = json.loads(path.read_text().splitlines()[0])
    assert header["hash"] == fingerprint(CONFIG)


def test_a_file_cut_off_anywhere_loses_one_record_at_most(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    written(path)
    content = path.read_bytes()
    ends = [at + 1 for at, byte in enumerate(content) if byte == ord("\n")]
    for cut in range(len(content) + 1):
        path.write_bytes(content[:cut])
        journal = Journal.open(path, CONFIG)
        kept = max(0, sum(end <= cut for end in ends) - 1)
        assert journal.records() == tuple(RECORDS[:kept])
        journal.append(RECORDS[-1])
        assert Journal.open(path, CONFIG).records() == (*RECORDS[:kept], RECORDS[-1])


def test_a_line_that_was_written_in_part_is_dropped(tmp_path: Path) -> None:
    """Blocks of a file may reach the disk in another order than they were written."""
    path = tmp_path / "a.jsonl"
    written(path)
    with path.open("ab") as file:
        file.write(b"\0\0\0\0\n")
    assert Journal.open(path, CONFIG).records() == tuple(RECORDS)
    assert path.read_bytes().endswith(b"}\n")


def test_damage_in_the_middle_is_told(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    written(path)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:3], "oops\n", *lines[3:]]))
    for read in (lambda: Journal.open(path, CONFIG), lambda: Journal.existing(path)):
        with pytest.raises(JournalError, match="line 4"):
            read()


def test_another_configuration_is_refused_and_named(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    written(path)
    before = path.read_bytes()
    with pytest.raises(JournalError, match=r"different in seed \(there 1, now 2\)"):
        Journal.open(path, {**CONFIG, "seed": 2})
    assert path.read_bytes() == before


@pytest.mark.parametrize("content", ["", "text\n", '{"a": 1}\n', "[1]\n"])
def test_what_is_no_journal_is_left_alone(tmp_path: Path, content: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(content)
    with pytest.raises(JournalError):
        Journal.existing(path)
    if content:
        with pytest.raises(JournalError):
            Journal.open(path, CONFIG)
    assert path.read_text() == content
    with pytest.raises(JournalError, match="not there"):
        Journal.existing(tmp_path / "b.jsonl")


def test_every_record_is_on_the_disk_before_append_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: sizes.append(os.fstat(descriptor).st_size))
    path = tmp_path / "a.jsonl"
    journal = Journal.open(path, CONFIG)
    journal.append(RECORDS[0])
    assert len(sizes) == 2
    assert sizes[-1] == path.stat().st_size


# --- a run that is ended ---------------------------------------------------------------------------------------

PLAN = Sampled(PlayerSplits(8, (2, 4), 0), pairs=8)
RULE = StopRule(96)


def play(item: Item) -> list[float]:
    """An additive game, different for every example."""
    weights = torch.arange(8, dtype=torch.float64) / 7 + item.example
    values: list[float] = (PLAN.coalitions(item.batch).double() @ weights).tolist()
    return values


class Ended(BaseException):
    """As KeyboardInterrupt: nothing catches it."""


@settings(max_examples=15, deadline=None)
@given(ends=st.lists(st.integers(0, 30), min_size=1, max_size=3))
def test_a_run_ended_at_any_time_resumes_to_the_same_bits(
    tmp_path_factory: pytest.TempPathFactory, ends: list[int]
) -> None:
    path = tmp_path_factory.mktemp("journal") / "a.jsonl"
    config = PLAN.config()
    expected = run_sampled(PLAN, RULE, LocalExecutor(play), Ledger(4))
    asked = 0
    for end in ends:
        left = [end]

        def until(item: Item, left: list[int] = left) -> list[float]:
            if not left[0]:
                raise Ended
            left[0] -= 1
            return play(item)

        with suppress(Ended):
            run_sampled(PLAN, RULE, LocalExecutor(until), Ledger(4, Journal.open(path, config)))
        asked += end - left[0]
        assert len(Journal.open(path, config).records()) == asked
    found = run_sampled(PLAN, RULE, LocalExecutor(play), Ledger(4, Journal.open(path, config)))
    assert torch.equal(found.values, expected.values)
    assert torch.equal(found.errors, expected.errors)
    assert len(Journal.open(path, config).records()) == 4 * 12


def test_a_full_disk_ends_the_run_and_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.jsonl"
    ledger = Ledger(4, Journal.open(path, PLAN.config()))
    real = os.fsync

    def full(descriptor: int) -> None:
        if len(ledger) == 5:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(JournalError, match="No space left on device"):
            run_sampled(PLAN, RULE, LocalExecutor(play), ledger)
    assert len(ledger) == 5
    resumed = Ledger(4, Journal.open(path, PLAN.config()))
    assert len(resumed) >= 5
    expected = run_sampled(PLAN, RULE, LocalExecutor(play), Ledger(4))
    assert torch.equal(run_sampled(PLAN, RULE, LocalExecutor(play), resumed).values, expected.values)


def test_shards_merge_to_the_same_bits(tmp_path: Path) -> None:
    merged = Ledger(4)
    for example in (2, 0, 3, 1):
        shard = Ledger(4, Journal.open(tmp_path / f"{example}.jsonl", PLAN.config()))
        for done in LocalExecutor(play).run([Item(batch, example) for batch in range(12)]):
            shard.add(done)
        assert merged.complete_batches() == 0
        merged.merge(Done(item, play(item)) for item in [Item(batch, example) for batch in range(12)])
    assert merged.complete_batches() == 12
    expected = run_sampled(PLAN, RULE, LocalExecutor(play), Ledger(4))
    assert torch.equal(run_sampled(PLAN, RULE, LocalExecutor(play), merged).values, expected.values)
    with pytest.raises(ShapleyError, match="different values for batch 3 of example 1"):
        merged.merge([Done(Item(3, 1), [0.0] * 16)])


def test_records_that_are_no_items_are_told(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "a.jsonl", CONFIG)
    journal.append({"batch": 1})
    with pytest.raises(JournalError, match="no evaluated item"):
        Ledger(4, journal)
