"""The file of a journal: one writer at a time, and lines that are there whole or not at all."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import pytest

from support.processes import environment
from winnow.estimate import journal_file
from winnow.estimate.errors import JournalError
from winnow.estimate.journal import Journal

CONFIG = {"seed": 1}

HOLD = """
import sys
from pathlib import Path
from winnow.estimate.journal import Journal
journal = Journal.open(Path(sys.argv[1]), {"seed": 1})
journal.append({"from": "another process"})
print("open", flush=True)
sys.stdin.read()
"""


@contextmanager
def holding(path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Another process that has the journal open."""
    command = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment()) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"open\n"
        yield process


def test_a_second_process_is_refused_and_told_who_writes(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    with holding(path) as process:
        before = path.read_bytes()
        with pytest.raises(
            JournalError, match=rf"a.jsonl is being written by another process \(process {process.pid}\)"
        ):
            Journal.open(path, CONFIG)
        assert path.read_bytes() == before
        # Reading takes nothing away.
        assert Journal.existing(path).records() == ({"from": "another process"},)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert Journal.open(path, CONFIG).records() == ({"from": "another process"},)


def test_whoever_opens_it_last_in_a_process_has_it(tmp_path: Path) -> None:
    """An interrupted cell of a notebook leaves its journal behind."""
    path = tmp_path / "a.jsonl"
    first = Journal.open(path, CONFIG)
    first.append({"x": 1})
    second = Journal.open(path, CONFIG)
    with pytest.raises(JournalError, match="opened again by this process"):
        first.append({"x": 2})
    second.append({"x": 3})
    second.close()
    assert Journal.open(path, CONFIG).records() == ({"x": 1}, {"x": 3})


def test_a_fork_is_refused(tmp_path: Path) -> None:
    """It shares the lock, and would take what was appended since for the rest of a failed append of its own."""
    path = tmp_path / "a.jsonl"
    journal = Journal.open(path, CONFIG)
    journal.append({"x": 1})
    told, tells = os.pipe()
    appended, appends = os.pipe()
    if (child := os.fork()) == 0:
        try:
            os.read(appended, 1)
            journal.append({"x": 2})
        except JournalError as problem:
            os.write(tells, str(problem).encode())
        finally:
            os._exit(0)
    journal.append({"x": 3})
    os.write(appends, b"!")
    os.waitpid(child, 0)
    os.close(tells)
    assert f"is being written by process {os.getpid()}, from which this one was forked" in os.read(told, 1000).decode()
    for each in (told, appended, appends):
        os.close(each)
    journal.append({"x": 4})
    assert Journal.existing(path).records() == ({"x": 1}, {"x": 3}, {"x": 4})


def test_a_thread_that_opens_it_waits_for_an_append_in_flight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the descriptor is closed under it, and the line goes into the file that is opened next."""
    path = tmp_path / "a.jsonl"
    journal = Journal.open(path, CONFIG)
    real, opening = os.fsync, Thread(target=lambda: later.append(Journal.open(path, CONFIG)))
    later: list[Journal] = []

    def slow(descriptor: int) -> None:
        opening.start()
        opening.join(0.2)
        assert opening.is_alive()
        real(descriptor)

    with monkeypatch.context() as slowed:
        slowed.setattr(os, "fsync", slow)
        journal.append({"x": 1})
    opening.join()
    assert later[0].records() == ({"x": 1},)


def test_what_others_wrote_is_not_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some network file systems have no locks."""

    def none(*_: object) -> None:
        raise OSError(errno.ENOTSUP, "Operation not supported")

    monkeypatch.setattr("fcntl.flock", none)
    path = tmp_path / "a.jsonl"
    with holding(path):
        # The other process had it first; this one opens it, and then the other goes on.
        journal = Journal.open(path, CONFIG)
        with path.open("ab") as file:
            file.write(b"a line of another process\n")
        before = path.read_bytes()
        with pytest.raises(JournalError, match="made longer by another program"):
            journal.append({"x": 1})
        assert path.read_bytes() == before


@pytest.mark.parametrize("taken", [0, 1, 20])
def test_a_disk_that_fills_in_the_middle_of_a_line_leaves_no_part_of_it(tmp_path: Path, taken: int) -> None:
    path = tmp_path / "a.jsonl"
    journal = Journal.open(path, CONFIG)
    journal.append({"x": 1})
    before = path.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + taken, hard))
    try:
        with pytest.raises(JournalError, match=r"Cannot write .*a\.jsonl: File too large"):
            journal.append({"x": "a text that is longer than what is left"})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == before
    journal.append({"x": 2})
    assert Journal.open(path, CONFIG).records() == ({"x": 1}, {"x": 2})


def test_what_cannot_even_be_taken_back_is_dropped_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.jsonl"
    journal = Journal.open(path, CONFIG)
    journal.append({"x": 1})

    def failing(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", failing)
        broken.setattr(os, "ftruncate", failing)
        with pytest.raises(JournalError, match="Input/output error"):
            journal.append({"x": 2})
    journal.append({"x": 3})
    assert Journal.open(path, CONFIG).records() == ({"x": 1}, {"x": 3})


def test_a_file_that_is_deleted_or_cut_off_under_the_writer_is_told(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    journal = Journal.open(path, CONFIG)
    journal.append({"x": 1})
    os.truncate(path, path.stat().st_size - 3)
    with pytest.raises(JournalError, match="made shorter by another program"):
        journal.append({"x": 2})
    path.unlink()
    with pytest.raises(JournalError, match="deleted while it was written"):
        journal.append({"x": 2})


@pytest.mark.parametrize("kind", ["folder", "pipe", "device"])
def test_only_regular_files_are_journals(tmp_path: Path, kind: str) -> None:
    path = Path("/dev/full") if kind == "device" else tmp_path / "a.jsonl"
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    for read in (lambda: Journal.open(path, CONFIG), lambda: Journal.existing(path)):
        with pytest.raises(JournalError, match="cannot hold a journal"):
            read()


def test_reading_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    Journal.open(path, CONFIG).append({"x": 1})
    with path.open("ab") as file:
        file.write(b'{"x": 2, "ha')
    before = path.read_bytes()
    journal = Journal.existing(path)
    assert journal.records() == ({"x": 1},)
    with pytest.raises(JournalError, match="for reading only"):
        journal.append({"x": 2})
    assert path.read_bytes() == before


def test_lines_of_others_behind_an_append_that_failed_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a file system without locks."""
    file = journal_file.JournalFile(tmp_path / "a.jsonl")
    file.append(b"first\n")

    def failing(descriptor: int, line: bytes) -> None:
        os.write(descriptor, line[:3])
        with (tmp_path / "a.jsonl").open("ab") as other:
            other.write(b"a line of another program\n")
        raise OSError(errno.ENOSPC, "no")

    monkeypatch.setattr(journal_file, "_write", failing)
    with pytest.raises(JournalError, match="Cannot write"):
        file.append(b"second\n")
    assert (tmp_path / "a.jsonl").read_bytes().endswith(b"a line of another program\n")
