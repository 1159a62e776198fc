"""A full disk and a read-only one: what is wrong is said in words, nothing is lost, and the journal goes on."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from support.disks import Disk, largest_file, small_disk
from winnow.cli import main
from winnow.commands.failures import FAILED
from winnow.estimate.journal import Journal
from winnow.heads import HeadScores

pytestmark = pytest.mark.usefixtures("one_thread")

Run = Callable[[str], tuple[int, str]]

JOURNALED = {
    "needle": ("heads needle --kind er --lengths 0 --depths 2 --out s.safetensors", "s.safetensors"),
    "cokv": ("heads cokv --questions 2 --samples 32 --batch 4 --keep-noise --out s.safetensors", "s.safetensors"),
    "tune": ("heads tune --method cokv --documents 1 --values 1,3 --budgets 64 --out s.json", "s.json"),
}


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command; returns its exit code, and what it said on stderr."""

    def command(line: str) -> tuple[int, str]:
        code = main([*line.split()])
        return code, capsys.readouterr().err

    return command


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    with small_disk(tmp_path / "disk") as disk:
        monkeypatch.chdir(disk.folder)
        yield disk
        monkeypatch.chdir(tmp_path)


def found(path: Path) -> object:
    """The results in a file, without the day."""
    if path.suffix == ".safetensors":
        return HeadScores.load(path).values.tolist()
    told = json.loads(path.read_text())
    del told["protocol"]["date"]
    return told


def whole(run: Run, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[object, int]:
    """The results of an uninterrupted command, and the bytes of its journal."""
    command, out = JOURNALED[name]
    with monkeypatch.context() as elsewhere:
        elsewhere.chdir(tmp_path)
        assert run(command)[0] == 0
    return found(tmp_path / out), (tmp_path / "s.journal.jsonl").stat().st_size


def check_stopped(run: Run, name: str, folder: Path, stopping: AbstractContextManager[object], told: str) -> None:
    """The command ends in words, and what it had finished is in the journal, line by line."""
    command, out = JOURNALED[name]
    with stopping:
        code, err = run(command)
    assert code == FAILED
    assert told in err
    assert "Traceback" not in err
    lines = err.strip().splitlines()
    # The first line says what is kept.
    assert len(lines) == 2, err
    assert "are kept in s.journal.jsonl; the same command goes on from there." in lines[0]
    assert not (folder / out).exists()
    content = (folder / "s.journal.jsonl").read_bytes()
    assert content.endswith(b"}\n")
    assert len(Journal.existing(folder / "s.journal.jsonl").records()) == content.count(b"\n") - 1


@pytest.mark.parametrize("name", JOURNALED)
def test_a_file_that_may_not_grow(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    expected, size = whole(run, name, tmp_path, monkeypatch)
    folder = tmp_path / "again"
    folder.mkdir()
    monkeypatch.chdir(folder)
    first = len((tmp_path / "s.journal.jsonl").read_bytes().splitlines(keepends=True)[0])
    check_stopped(run, name, folder, largest_file((first + size) // 2), "File too large")
    before = (folder / "s.journal.jsonl").read_bytes()
    command, out = JOURNALED[name]
    assert run(command)[0] == 0
    assert found(folder / out) == expected
    assert (folder / "s.journal.jsonl").read_bytes().startswith(before)


class Filled:
    """A disk that has room for one page only."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk

    def __enter__(self) -> None:
        self.disk.fill(4096)

    def __exit__(self, *_: object) -> None:
        self.disk.make_room()


def test_a_full_disk(run: Run, disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, size = whole(run, "needle", tmp_path, monkeypatch)
    assert size > 4096
    check_stopped(run, "needle", disk.folder, Filled(disk), "No space left on device")
    assert run(JOURNALED["needle"][0])[0] == 0
    assert found(disk.folder / "s.safetensors") == expected


@pytest.mark.parametrize(("name", "replaced"), [("needle", False), ("cokv", True), ("tune", True)])
def test_results_that_have_no_room_are_not_there_and_the_journal_is(
    run: Run, disk: Disk, tmp_path: Path, name: str, replaced: bool
) -> None:
    """The journal is on another disk, so that all work is done."""
    command, out = JOURNALED[name]
    command += f" --journal {tmp_path}/j.jsonl"
    if replaced:
        # A result that is there already stays.
        (disk.folder / out).write_text("mine")
        command += " --force"
    disk.fill(0)
    code, err = run(command)
    assert code == FAILED
    assert "No space left on device" in err
    assert len(err.strip().splitlines()) == 1
    assert [path.name for path in disk.folder.iterdir() if path.name != "filler"] == ([out] if replaced else [])
    assert not replaced or (disk.folder / out).read_text() == "mine"
    disk.make_room()
    before = (tmp_path / "j.jsonl").read_bytes()
    assert run(command)[0] == 0
    assert (tmp_path / "j.jsonl").read_bytes() == before
    assert found(disk.folder / out)


@pytest.mark.parametrize("name", JOURNALED)
def test_a_read_only_folder_is_told_before_any_work(run: Run, disk: Disk, tmp_path: Path, name: str) -> None:
    disk.allow_writing(False)
    command, _ = JOURNALED[name]
    for line in (command, f"{command.replace('--out s', f'--out {tmp_path}/s')} --journal s.journal.jsonl"):
        code, err = run(line)
        assert code == FAILED
        assert "Read-only file system" in err
        assert len(err.strip().splitlines()) == 1
    assert list(disk.folder.iterdir()) == []
    disk.allow_writing(True)
    assert run(command)[0] == 0


def test_a_context_that_has_no_room_is_not_there(run: Run, disk: Disk, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("The password of the harbor is lemon. " * 20)
    command = f"compress {tmp_path}/text.txt --out c.safetensors --method snapkv --budget 64"
    disk.fill(4096)
    code, err = run(command)
    assert code == FAILED
    assert "No space left on device" in err
    assert "Traceback" not in err
    assert [path.name for path in disk.folder.iterdir()] == ["filler"]
    disk.allow_writing(False)
    code, err = run(command)
    assert code == FAILED
    assert "Read-only file system" in err
    disk.allow_writing(True)
    disk.make_room()
    assert run(command)[0] == 0
