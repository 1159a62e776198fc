"""Processes: every item once, the same numbers, losses made good."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from support.items import BROKEN, FATAL, ITEMS, PLAN, UNSENDABLE, Playing, Unprepared, here
from support.processes import environment, is_alive
from winnow.estimate.cokv.ledger import Ledger
from winnow.estimate.cokv.run import run_sampled
from winnow.estimate.cokv.settings import StopRule
from winnow.estimate.errors import ExecutorError
from winnow.estimate.executors.local import LocalExecutor
from winnow.estimate.executors.processes import ProcessExecutor


def kill_idle(executor: ProcessExecutor[list[float]]) -> None:
    """Kills the worker that is given the next item; returns once its pool knows."""
    (process,) = (executor._pools[0]._processes or {}).values()
    process.kill()
    process.join()
    deadline = time.monotonic() + 30
    while not executor._pools[0]._broken and time.monotonic() < deadline:  # type: ignore[attr-defined]
        time.sleep(0.01)


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
        folder = Path(executor._folder.name)
        assert len(list(folder.iterdir())) == 1, "a recipe is written once for all workers"
        kill_idle(executor)
        assert dict(executor.run(ITEMS[1:3])) == {item: expected[item] for item in ITEMS[1:3]}
        same = run_sampled(PLAN, StopRule(64), executor, Ledger(3))
        assert torch.equal(
            same.values, run_sampled(PLAN, StopRule(64), LocalExecutor(Playing(tmp_path).play), Ledger(3)).values
        )
        assert list(executor.run([])) == []
        with pytest.raises(ValueError, match="no such batch"):
            list(executor.run([BROKEN]))
        with pytest.raises(RuntimeError, match="TwoNames: this and that"):
            list(executor.run([UNSENDABLE]))
        with pytest.raises(ExecutorError, match="2 worker processes died at batch 99 of example 0"):
            list(executor.run([FATAL]))
    assert not folder.exists()
    with pytest.raises(ExecutorError, match="at least 1"):
        ProcessExecutor(Playing(tmp_path), workers=0)


def test_a_worker_that_cannot_be_made_says_why() -> None:
    with ProcessExecutor(Unprepared(), workers=1) as executor, pytest.raises(FileNotFoundError, match="no such model"):
        list(executor.run(ITEMS))


LEFT = """
import sys
from pathlib import Path
from support.processes import environment, is_alive
from support.items import Playing, ITEMS
from winnow.estimate.executors.processes import ProcessExecutor

if __name__ == "__main__":
    executor = ProcessExecutor(Playing(Path(sys.argv[1])), workers=2)
    found = executor.run(ITEMS)
    next(found)
    print("at work", flush=True)
    sys.stdin.read()
"""


def test_workers_end_with_a_process_that_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "left.py"
    script.write_text(LEFT)
    tests = Path(__file__).parents[2]
    command = [sys.executable, str(script), str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment(tests)) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"at work\n"
        workers = [int(path.name.removeprefix("worker-")) for path in tmp_path.glob("worker-*")]
        assert workers
        process.kill()
    for _ in range(600):
        if not any(map(is_alive, workers)):
            return
        time.sleep(0.1)
    for worker in workers:
        os.kill(worker, signal.SIGKILL)
    pytest.fail("the workers went on")


def test_a_full_disk_is_told_with_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(Path, "write_bytes", full)
        with pytest.raises(ExecutorError, match=r"Cannot write to .*winnow-.*No space left on device.*TMPDIR"):
            ProcessExecutor(Playing(tmp_path), workers=1)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "none"))
    with pytest.raises(ExecutorError, match="Cannot write a temporary folder"):
        ProcessExecutor(Playing(tmp_path), workers=1)
