"""The journal of finished work: nothing that was written is ever lost, whatever ends the process."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from winnow.estimate.errors import JournalError
from winnow.estimate.journal import Journal, fingerprint
from winnow.estimate.records import answer_records


class TestJournal:
    def test_keeps_what_was_appended(self, tmp_path):
        path = tmp_path / "new" / "j.jsonl"
        journal = Journal.open(path, {"a": 1, "b": [0.5]})
        journal.append({"x": 0.1})
        journal.append({"y": "ä"})
        assert journal.records() == ({"x": 0.1}, {"y": "ä"})
        assert Journal.open(path, {"b": [0.5], "a": 1}).records() == journal.records()

    @pytest.mark.parametrize("torn", [b'{"y": 2', b'{"y": 2\n', b"\n"])
    def test_a_torn_last_line_is_dropped(self, tmp_path, torn):
        path = tmp_path / "j.jsonl"
        Journal.open(path, {}).append({"x": 1})
        with path.open("ab") as file:
            file.write(torn)
        journal = Journal.open(path, {})
        assert journal.records() == ({"x": 1},)
        journal.append({"z": 3})
        assert Journal.open(path, {}).records() == ({"x": 1}, {"z": 3})

    def test_a_torn_first_line_is_a_new_journal(self, tmp_path):
        path = tmp_path / "j.jsonl"
        path.write_bytes(b'{"winnow_jour')
        Journal.open(path, {"a": 1}).append({"x": 1})
        assert Journal.open(path, {"a": 1}).records() == ({"x": 1},)

    def test_another_configuration_is_refused_by_name(self, tmp_path):
        path = tmp_path / "j.jsonl"
        Journal.open(path, {"seed": 0, "model": "m"})
        with pytest.raises(JournalError, match=r"differs in seed \(there 0, now 1\):"):
            Journal.open(path, {"seed": 1, "model": "m"})

    def test_damage_and_foreign_files_are_errors(self, tmp_path):
        path = tmp_path / "j.jsonl"
        Journal.open(path, {}).append({"x": 1})
        path.write_bytes(path.read_bytes() + b"broken\n" + b'{"y":2}\n')
        with pytest.raises(JournalError, match="line 3: not JSON"):
            Journal.open(path, {})
        path.write_text("notes of mine")
        with pytest.raises(JournalError, match="not a journal"):
            Journal.open(path, {})
        assert path.read_text() == "notes of mine"


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
    with pytest.raises(JournalError, match=r"differs in seed \(there 1, now 2\)"):
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
    with pytest.raises(JournalError, match="does not exist"):
        Journal.existing(tmp_path / "b.jsonl")


def test_every_record_is_on_the_disk_before_append_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: sizes.append(os.fstat(descriptor).st_size))
    path = tmp_path / "a.jsonl"
    journal = Journal.open(path, CONFIG)
    journal.append(RECORDS[0])
    assert len(sizes) == 2
    assert sizes[-1] == path.stat().st_size


def test_a_configuration_that_nobody_could_read_again_is_refused(tmp_path: Path) -> None:
    """Bytes of a command line that are not UTF-8; all work would be lost with the next opening."""
    with pytest.raises(JournalError, match="a configuration that could not be read again, half a surrogate pair"):
        Journal.open(tmp_path / "a.jsonl", {"text": "caf\udce9"})
    assert not (tmp_path / "a.jsonl").exists()


def test_a_record_that_was_appended_is_named_by_its_line(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "a.jsonl", {"seed": 1})
    for right in (True, False):
        journal.append({"split": "test", "document": 0, "right": {"1 @ 8": [right]}})
    for each in (journal, Journal.existing(tmp_path / "a.jsonl")):
        with pytest.raises(JournalError, match=r"line 3"):
            list(each.read(answer_records({"test": [1]})))
