"""The estimate of time and memory that comes before the long part of `winnow heads cokv`."""

from __future__ import annotations

from support.clocks import SetClock
from winnow.commands.heads.cokv_progress import MemoryNeeds, coalitions_watched, tell_screening
from winnow.estimate.cokv.ledger import Baseline
from winnow.estimate.cokv.screening import Screening


def test_the_estimate_comes_when_every_worker_has_done_a_batch(capsys):
    clock = SetClock()
    with coalitions_watched(known=10, workers=2, needs=MemoryNeeds(3 << 30, None), may_stop=True, clock=clock) as watch:
        for done in range(11, 14):
            clock.wait(3)
            watch(done, 110, None)
            lines = [line for line in capsys.readouterr().err.splitlines() if "to go" in line]
            expected = "Coalitions: 98 batches to go, about 4:54 at most; the prompts take 3.00 GiB of memory."
            assert lines == ([expected] if done == 12 else [])


def test_short_work_needs_no_estimate(capsys):
    clock = SetClock()
    with coalitions_watched(known=0, workers=1, needs=MemoryNeeds(0, None), may_stop=False, clock=clock) as watch:
        clock.wait(1)
        watch(1, 20, None)
    assert "to go" not in capsys.readouterr().err


def test_many_missed_examples_are_not_all_listed(capsys):
    tell_screening(Screening({number: Baseline(0.0, 0.0) for number in range(30)}), 40, keep_missed=False)
    assert capsys.readouterr().err.strip().endswith("18, 19, 20 and 10 more.")


def test_a_limit_on_memory_is_told_where_the_prompts_take_more():
    assert str(MemoryNeeds(3 << 30, 1 << 20)) == "the prompts take 3.00 GiB, of which 1.0 MiB are kept in memory"
    assert str(MemoryNeeds(1 << 20, 1 << 20)) == "the prompts take 1.0 MiB of memory"
