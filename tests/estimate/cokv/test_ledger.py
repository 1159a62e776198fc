"""Runs that are ended, resumed and merged: the same bits, and nothing lost."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support.items import PLAN, play
from winnow.estimate.cokv.ledger import Ledger
from winnow.estimate.cokv.run import run_sampled
from winnow.estimate.cokv.settings import StopRule
from winnow.estimate.errors import JournalError, ShapleyError
from winnow.estimate.executors.base import Done, Item
from winnow.estimate.executors.local import LocalExecutor
from winnow.estimate.journal import Journal

RULE = StopRule(96)


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
            run_sampled(PLAN, RULE, LocalExecutor(until), Ledger.journaled(Journal.open(path, config), PLAN, 4))
        asked += end - left[0]
        assert len(Journal.open(path, config).records()) == asked
    found = run_sampled(PLAN, RULE, LocalExecutor(play), Ledger.journaled(Journal.open(path, config), PLAN, 4))
    assert torch.equal(found.values, expected.values)
    assert torch.equal(found.errors, expected.errors)
    assert len(Journal.open(path, config).records()) == 4 * 12


def test_a_full_disk_ends_the_run_and_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.jsonl"
    ledger = Ledger.journaled(Journal.open(path, PLAN.config()), PLAN, 4)
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
    resumed = Ledger.journaled(Journal.open(path, PLAN.config()), PLAN, 4)
    assert len(resumed) >= 5
    expected = run_sampled(PLAN, RULE, LocalExecutor(play), Ledger(4))
    assert torch.equal(run_sampled(PLAN, RULE, LocalExecutor(play), resumed).values, expected.values)


def test_shards_merge_to_the_same_bits(tmp_path: Path) -> None:
    merged = Ledger(4)
    for example in (2, 0, 3, 1):
        shard = Ledger.journaled(Journal.open(tmp_path / f"{example}.jsonl", PLAN.config()), PLAN, 4)
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
    journal = Journal.open(tmp_path / "a.jsonl", {})
    journal.append({"batch": 1})
    with pytest.raises(JournalError, match='line 2: there is no "example"'):
        Ledger.journaled(journal, PLAN, 4)


def test_utilities_are_means_over_the_examples_that_count() -> None:
    ledger = Ledger(3)
    for example in range(3):
        ledger.add(Done(Item(0, example), [float(example), 0.0]))
    ledger.leave_out([0])
    assert ledger.utilities([0]).tolist() == [[1.5, 0.0]]
