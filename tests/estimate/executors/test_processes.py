"""Processes: every item once, the same numbers, losses made good."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from support.items import BROKEN, FATAL, ITEMS, PLAN, Playing, here
from winnow.estimate.cokv.ledger import Ledger
from winnow.estimate.cokv.run import run_sampled
from winnow.estimate.cokv.settings import StopRule
from winnow.estimate.errors import ExecutorError
from winnow.estimate.executors.local import LocalExecutor
from winnow.estimate.executors.processes import ProcessExecutor


def test_processes(tmp_path: Path) -> None:
    """One crew for all that has to be seen, because starting processes takes seconds."""
    expected = here(tmp_path)
    with ProcessExecutor(Playing(tmp_path, deadly=ITEMS[5]), workers=2) as executor:
        found = list(executor.run(ITEMS))
        assert sorted(done.item for done in found) == sorted(ITEMS)
        assert dict(found) == expected
        assert (tmp_path / "died").exists()
        # This process, the worker that was killed, and whoever did its work: the other one or the one in its place,
        # which may still be starting when all is done.
        assert len(list(tmp_path.glob("worker-*"))) >= 3
        same = run_sampled(PLAN, StopRule(64), executor, Ledger(3))
        assert torch.equal(
            same.values, run_sampled(PLAN, StopRule(64), LocalExecutor(Playing(tmp_path).play), Ledger(3)).values
        )
        assert list(executor.run([])) == []
        with pytest.raises(ValueError, match="no such batch"):
            list(executor.run([BROKEN]))
        with pytest.raises(ExecutorError, match="2 worker processes died at batch 99 of example 0"):
            list(executor.run([FATAL]))
    with pytest.raises(ExecutorError, match="at least 1"):
        ProcessExecutor(Playing(tmp_path), workers=0)
