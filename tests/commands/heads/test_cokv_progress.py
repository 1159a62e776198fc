"""The estimate of time and memory that comes before the long part of `winnow heads cokv`."""

from __future__ import annotations

from support.clocks import SetClock
from winnow.commands.heads.cokv_progress import MemoryNeeds, coalitions_watched, tell_screening
from winnow.estimate.cokv.ledger import Baseline
from winnow.estimate.cokv.screening import Screening


def test_the_estimate_comes_with_the_first_batch(capsys):
    needs, clock = MemoryNeeds(3 << 30, None), SetClock()
    with coalitions_watched(known=10, starting=0, needs=needs, may_stop=True, clock=clock) as watch:
        for done in (11, 12):
            clock.wait(3)
            watch(done, 110, None)
            expected = "Coalitions: 99 batches to go, about 4:57 at most; the prompts take 3.00 GiB of memory."
            assert estimates(capsys) == ([expected] if done == 11 else [])


def test_workers_that_start_have_no_part_in_the_estimate(capsys):
    """Both load for a minute, and then do a batch in six seconds."""
    clock = SetClock()
    with coalitions_watched(known=10, starting=2, needs=MemoryNeeds(0, None), may_stop=False, clock=clock) as watch:
        for done, seconds in enumerate((66, 0, 6, 0, 6), start=11):
            clock.wait(seconds)
            watch(done, 110, None)
            expected = "Coalitions: 97 batches to go, about 4:51; the prompts take 0 B of memory."
            assert estimates(capsys) == ([expected] if done == 13 else [])


def estimates(capsys):
    return [line for line in capsys.readouterr().err.splitlines() if "to go" in line]


def test_short_work_needs_no_estimate(capsys):
    clock = SetClock()
    with coalitions_watched(known=0, starting=0, needs=MemoryNeeds(0, None), may_stop=False, clock=clock) as watch:
        clock.wait(1)
        watch(1, 20, None)
    assert "to go" not in capsys.readouterr().err


def test_many_missed_examples_are_not_all_listed(capsys):
    tell_screening(Screening({number: Baseline(0.0, 0.0) for number in range(30)}), 40, keep_missed=False)
    assert capsys.readouterr().err.strip().endswith("18, 19, 20 and 10 more.")


def test_a_limit_on_memory_is_told_where_the_prompts_take_more():
    assert str(MemoryNeeds(3 << 30, 1 << 20)) == "the prompts take 3.00 GiB, of which 1.0 MiB are kept in memory"
    assert str(MemoryNeeds(1 << 20, 1 << 20)) == "the prompts take 1.0 MiB of memory"
