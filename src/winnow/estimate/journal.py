"""An append-only journal of finished pieces of work, so that a long estimation can be interrupted and resumed.

One JSON object per line. The first line says which configuration the records belong to; every record is on the disk
before `append` returns. A line that was being written when the process died is dropped at the next opening. Every
other line has a hash of what it says and of the configuration, so that no damage passes for a result.
"""

from __future__ import annotations

import codecs
import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from winnow.errors import JsonError
from winnow.estimate.errors import JournalError
from winnow.estimate.journal_file import REMEDY, JournalFile, raw_lines
from winnow.estimate.records import R, Record, Records
from winnow.strict_json import parse_object
from winnow.typed import OneOf, TypedError, read_fields, shown

VERSION = 2
UNHASHED = 1
"""The version whose records have no hash. Journals of it are read and go on without."""
HEADER = "winnow_journal"
HASH = "hash"
_HEADER_TYPES = {HEADER: Annotated[int, OneOf((VERSION, UNHASHED))], HASH: str, "config": dict[str, Any]}


class Line(NamedTuple):
    """A record, and the number of its line."""

    number: int
    record: Record


class Journal:
    """The records of one configuration in one file."""

    def __init__(self, path: Path, header: Record, lines: list[Line], file: JournalFile | None) -> None:
        """For `open` and `existing`, which check the file first. file: None where nothing will be written."""
        self.path = path
        self.config: Record = header["config"]
        """Everything that the records depend on."""
        self._header = header
        self._lines = lines
        self._file = file

    @classmethod
    def open(cls, path: Path, config: Mapping[str, Any], earlier: Mapping[str, Any] | None = None) -> Journal:
        """The journal at a path; a new one where there is no file. No other process can write it from then on.

        config: what the records depend on, as plain JSON values; put a `fingerprint` in place of long ones. earlier:
        the same as an earlier version put it, whose journals are opened, too, and keep their configuration. Raises
        JournalError where the file belongs to another configuration (naming what differs), is none, is damaged, or is
        being written by another process.
        """
        plain = _readable(path, "a configuration", config)
        file = JournalFile(path)
        fresh = {HEADER: VERSION, HASH: fingerprint(plain), "config": plain}
        raw = raw_lines(path)
        first = next(raw, b"")
        if not first.endswith(b"\n") and _encoded(fresh).startswith(first):
            # Nothing, or a first line that was being written when the process died.
            file.cut(0)
            file.append(_encoded(fresh))
            return cls(path, fresh, [], file)
        header = _header(path, first)
        if earlier is None or header[HASH] != fingerprint(json.loads(json.dumps(earlier))):
            _check_config(path, header, plain)
        lines, end = _records(path, header, raw)
        file.cut(len(first) + end)
        return cls(path, header, lines, file)

    @classmethod
    def existing(cls, path: Path) -> Journal:
        """The journal in a file, whatever its configuration, for reading. Raises JournalError where there is none."""
        raw = raw_lines(path)
        first = next(raw, b"")
        if not first:
            raise JournalError(f"{path} does not exist, or is empty: give the journal of an earlier command.")
        header = _header(path, first)
        lines, _ = _records(path, header, raw)
        return cls(path, header, lines, None)

    def records(self) -> tuple[Record, ...]:
        """All finished records, in the order in which they were written."""
        return tuple(line.record for line in self._lines)

    def read(self, kind: Records[R]) -> list[R]:
        """All finished records, as those of a plan.

        Work that was recorded twice with the same result counts once. Raises JournalError, naming the line, for a
        record that is of another form, that is of no work of the plan, or that contradicts an earlier one.
        """
        known: dict[str, tuple[int, object]] = {}
        found = []
        for line in self._lines:
            try:
                found.append(kind.read(line.record))
            except TypedError as problem:
                raise _unusable(self.path, line.number, str(problem)) from None
            for work, result in kind.results(line.record):
                number, earlier = known.setdefault(work, (line.number, result))
                if earlier != result:
                    raise JournalError(
                        f"{self.path}, line {line.number}: the result of {work} differs from that in line {number}, "
                        "and nothing says which is right. Delete both lines and this work is done again."
                    )
        return found

    def append(self, record: Mapping[str, Any]) -> None:
        """Adds a record of plain JSON values; it is on the disk when this returns.

        Raises JournalError where it cannot be written, and for numbers that are not finite and texts that are none.
        """
        if self._file is None:
            raise JournalError(f"{self.path} was opened for reading only.")
        plain = _readable(self.path, "a result", record)
        hashed = {HASH: record_hash(self._header, plain)} if self._header[HEADER] != UNHASHED else {}
        self._file.append(_encoded({**plain, **hashed}))
        self._lines.append(Line(len(self._lines) + 2, plain))

    def close(self) -> None:
        """Lets others write the file. A journal that nobody holds any more is closed by itself."""
        if self._file is not None:
            self._file.close()


def fingerprint(value: object) -> str:
    """A short hash of plain JSON values, the same whatever the order of their names."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def record_hash(header: Record, record: Record) -> str:
    """The hash that a record has in a journal, so that a line of another journal is told as well."""
    return fingerprint([header[HASH], record])


def _readable(path: Path, what: str, values: Mapping[str, Any]) -> Record:
    """Plain JSON values as they will be read. Raises JournalError where they could not be."""
    try:
        return parse_object(json.dumps(values))
    except JsonError as problem:
        raise JournalError(f"Cannot write {path}: {what} that could not be read again, {problem}.") from None


def _header(path: Path, first: bytes) -> Record:
    """The first line. Raises JournalError where a file does not begin as a journal does."""
    if first.startswith(codecs.BOM_UTF8):
        raise JournalError(f"{path} begins with a byte order mark, which an editor added: save it without one.")
    if not first.startswith(f'{{"{HEADER}"'.encode()):
        raise JournalError(f"{path} is not a journal of Winnow; give another name for the output, or move that file.")
    try:
        header = _parsed(first)
        read_fields(_HEADER_TYPES, header)
        if header[HASH] != fingerprint(header["config"]):
            raise TypedError("the configuration was changed after it was written")
    except TypedError as problem:
        raise JournalError(f"{path}, line 1: {problem}. Delete the file to start over.") from None
    return header


def _records(path: Path, header: Record, raw: Iterator[bytes]) -> tuple[list[Line], int]:
    """All records that were finished, which only the last may not be, and how many bytes they take."""
    lines: list[Line] = []
    end = 0
    for number, text in enumerate(raw, start=2):
        try:
            lines.append(Line(number, _record(header, text)))
        except TypedError as problem:
            if _may_be_torn(text) and next(raw, None) is None:
                break
            raise _unusable(path, number, str(problem)) from None
        end += len(text)
    return lines, end


def _may_be_torn(text: bytes) -> bool:
    """True if a line may have been cut off while it was written. Its blocks may reach the disk in any order."""
    return not text.endswith((b"}\n", b"}\r\n")) or b"\0" in text


def _record(header: Record, text: bytes) -> Record:
    """The record of a line, without its hash. Raises TypedError where the line does not say what was written."""
    if not text.endswith(b"\n"):
        raise TypedError("this line has no end")
    record = _parsed(text)
    if header[HEADER] == UNHASHED:
        return record
    if HASH not in record:
        raise TypedError(f'there is no "{HASH}"')
    hashed = record.pop(HASH)
    if hashed != record_hash(header, record):
        raise TypedError("it was changed after it was written, or comes from the journal of another configuration")
    return record


def _parsed(text: bytes) -> Record:
    """The JSON object of a line. Raises TypedError."""
    try:
        return parse_object(text.decode())
    except UnicodeDecodeError:
        raise TypedError("not UTF-8 text") from None
    except JsonError as problem:
        raise TypedError(str(problem)) from None


def _unusable(path: Path, number: int, problem: str) -> JournalError:
    return JournalError(f"{path}, line {number}: {problem}. {REMEDY}")


def _check_config(path: Path, header: Record, config: Record) -> None:
    if header[HASH] == fingerprint(config):
        return
    old = header["config"]
    differing = [name for name in (*config, *(old.keys() - config.keys())) if old.get(name) != config.get(name)]
    told = ", ".join(f"{name} (there {shown(old.get(name))}, now {shown(config.get(name))})" for name in differing)
    raise JournalError(
        f"{path} holds work of another configuration, which differs in {told}: repeat the earlier command to resume "
        "it, delete the file, or give another name for the output."
    )


def _encoded(record: Mapping[str, Any]) -> bytes:
    return json.dumps(record, separators=(",", ":")).encode() + b"\n"
