"""The folder of a report: complete or not there, and nobody else's files touched."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from support.disks import small_disk
from winnow.errors import FileError
from winnow.report.page.folder import RESULTS, write_folder


def files(**texts: str) -> dict[str, bytes]:
    """A report of such files, which it names."""
    named = {name.replace("_", "."): text.encode() for name, text in texts.items()}
    return {**named, RESULTS: json.dumps({"files": [*named, RESULTS]}).encode()}


def there(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_a_folder_is_written_with_those_above_it(tmp_path: Path) -> None:
    out = tmp_path / "a" / "b"
    write_folder(out, files(index_html="1"), force=False)
    assert there(out) == {"index.html", RESULTS}
    assert [path.name for path in out.parent.iterdir()] == ["b"]


def test_an_empty_folder_is_used(tmp_path: Path) -> None:
    write_folder(tmp_path, files(index_html="1"), force=False)
    assert there(tmp_path) == {"index.html", RESULTS}


def test_an_existing_report_needs_force(tmp_path: Path) -> None:
    out = tmp_path / "report"
    write_folder(out, files(index_html="1"), force=False)
    with pytest.raises(FileError, match="--force"):
        write_folder(out, files(index_html="2"), force=False)
    assert (out / "index.html").read_text() == "1"


def test_only_what_a_report_wrote_is_replaced_or_removed(tmp_path: Path) -> None:
    out = tmp_path / "report"
    write_folder(out, files(index_html="1", old_js="1"), force=False)
    (out / "notes.txt").write_text("mine")
    (out / "data" / "mine.js").write_text("mine")
    write_folder(out, files(index_html="2", new_js="2"), force=True)
    assert there(out) == {"index.html", "new.js", "notes.txt", "data/mine.js", RESULTS}
    assert (out / "index.html").read_text() == "2"
    assert [path.name for path in tmp_path.iterdir()] == ["report"]


def test_a_file_of_somebody_else_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("mine")
    with pytest.raises(FileError, match=r"index\.html was not written by winnow report"):
        write_folder(tmp_path, files(index_html="1"), force=True)
    assert there(tmp_path) == {"index.html"}


@pytest.mark.parametrize("name", ["../outside.txt", "/outside.txt", "data/../../outside.txt"])
def test_a_crafted_report_removes_nothing_outside(tmp_path: Path, name: str) -> None:
    out = tmp_path / "report"
    outside = tmp_path / "outside.txt"
    outside.write_text("mine")
    (out / "data").mkdir(parents=True)
    (out / RESULTS).write_text(json.dumps({"files": [name.replace("/outside", str(outside.with_suffix(""))), RESULTS]}))
    write_folder(out, files(index_html="1"), force=True)
    assert outside.read_text() == "mine"


def test_a_file_in_place_of_the_folder_is_told(tmp_path: Path) -> None:
    (tmp_path / "report").write_text("mine")
    with pytest.raises(FileError, match="is a file; give a folder"):
        write_folder(tmp_path / "report", files(index_html="1"), force=True)


def test_a_full_disk_leaves_the_earlier_report(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        out = disk.folder / "report"
        write_folder(out, files(index_html="1"), force=False)
        disk.fill(left=8192)
        with pytest.raises(FileError, match=r"report/plotly\.js: .*make room") as told:
            write_folder(out, files(index_html="2", plotly_js="x" * 100_000), force=True)
        assert ".part" not in str(told.value)
        assert (out / "index.html").read_text() == "1"
        assert {path.name for path in disk.folder.iterdir()} == {"filler", "report"}


@pytest.mark.parametrize("force", [False, True])
def test_a_disk_of_its_own_is_used(tmp_path: Path, force: bool) -> None:
    """Nothing moves from beside it to there in one step."""
    with small_disk(tmp_path / "disk") as disk:
        write_folder(disk.folder, files(index_html="1"), force=force)
        assert there(disk.folder) == {"index.html", RESULTS}


@pytest.mark.parametrize("at", range(1, 4))
def test_an_interrupt_leaves_one_report_or_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    """Three files are put in place one by one; the interrupt comes at each of them."""
    out = tmp_path / "report"
    write_folder(out, files(index_html="1", a_js="1"), force=False)
    calls = 0
    replace = Path.replace

    def interrupted(path: Path, target: Path) -> Path:
        nonlocal calls
        # Names in the unfinished folder are put in place by the same call before that.
        calls += path.suffix != ".part"
        if calls == at and path.suffix != ".part":
            calls += 1
            raise KeyboardInterrupt
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_folder(out, files(index_html="2", a_js="2"), force=True)
    assert {(out / name).read_text() for name in ("index.html", "a.js")} == {"2"}
    assert [path.name for path in tmp_path.iterdir()] == ["report"]


def test_an_interrupt_while_writing_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(descriptor: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_folder(tmp_path / "report", files(index_html="1"), force=False)
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: Path, target: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "rename", refused)
    with pytest.raises(FileError, match="Permission denied"):
        write_folder(tmp_path / "report", files(index_html="1"), force=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["../mine.txt", "a/../../mine.txt"])
def test_a_report_that_names_files_elsewhere_removes_none_of_them(tmp_path: Path, name: str) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    out = tmp_path / "report"
    write_folder(out, {"a/x": b"", RESULTS: json.dumps({"files": [name, "a/x", RESULTS]}).encode()}, force=False)
    write_folder(out, files(index_html="2"), force=True)
    assert (tmp_path / "mine.txt").read_text() == "mine"
