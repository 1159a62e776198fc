"""An append-only journal of finished pieces of work, so that a long estimation can be interrupted and resumed.

One JSON object per line. The first line says which configuration the records belong to; every record is on the disk
before `append` returns. A line that was being written when the process died is dropped at the next opening.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from winnow.estimate.errors import JournalError

VERSION = 1
HEADER = "winnow_journal"

Record = dict[str, Any]


class Journal:
    """The records of one configuration in one file."""

    def __init__(self, path: Path, config: Record, records: list[Record]) -> None:
        """For `open` and `existing`, which check the file first."""
        self.path = path
        self.config = config
        """Everything that the records depend on."""
        self._records = records

    @classmethod
    def open(cls, path: Path, config: Mapping[str, Any]) -> Journal:
        """The journal at a path; a new one where there is no file.

        config: what the records depend on, as plain JSON values; put a `fingerprint` in place of long ones. Raises
        JournalError where the file belongs to another configuration (naming what differs), is none, or is damaged.
        """
        plain: Record = json.loads(json.dumps(config))
        lines, end = _complete_lines(path)
        if not lines:
            _write(path, {HEADER: VERSION, "hash": fingerprint(plain), "config": plain}, end)
            return cls(path, plain, [])
        _check_header(path, _parsed(lines[0]), plain)
        return cls(path, plain, _whole_records(path, lines, end))

    @classmethod
    def existing(cls, path: Path) -> Journal:
        """The journal in a file, whatever its configuration. Raises JournalError where there is none."""
        lines, end = _complete_lines(path)
        header = _parsed(lines[0]) if lines else None
        config = header.get("config") if header else None
        if header is None or header.get(HEADER) != VERSION or not isinstance(config, dict):
            raise JournalError(f"{path} is not there, or is no journal that this Winnow can read.")
        return cls(path, config, _whole_records(path, lines, end))

    def records(self) -> tuple[Record, ...]:
        """All finished records, in the order in which they were written."""
        return tuple(self._records)

    def append(self, record: Mapping[str, Any]) -> None:
        """Adds a record of plain JSON values; it is on the disk when this returns. Raises JournalError."""
        _write(self.path, record)
        self._records.append(dict(record))


def fingerprint(value: object) -> str:
    """A short hash of plain JSON values, the same whatever the order of their names."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def _complete_lines(path: Path) -> tuple[list[bytes], int]:
    """The lines that end with a line break, and the byte where the last of them ends."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return [], 0
    except OSError as problem:
        raise JournalError(f"Cannot read {path}: {problem.strerror}.") from None
    end = content.rfind(b"\n") + 1
    if content and not content.startswith(f'{{"{HEADER}"'.encode()[: len(content)]):
        raise JournalError(f"{path} is not a journal of Winnow; give another name for the output, or move that file.")
    return content[:end].splitlines(), end


def _whole_records(path: Path, lines: list[bytes], end: int) -> list[Record]:
    """All lines after the header; takes the tail of a write that did not finish out of the file."""
    records = [_parsed(line) for line in lines[1:]]
    if records and records[-1] is None:
        end -= len(lines[-1]) + 1
        records.pop()
    if None in records:
        raise JournalError(
            f"{path} is damaged at line {2 + records.index(None)}: delete that line, or the file to start over."
        )
    _truncate(path, end)
    return [record for record in records if record is not None]


def _parsed(line: bytes) -> Record | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def _check_header(path: Path, header: Record | None, config: Record) -> None:
    if header is None or header.get(HEADER) != VERSION:
        raise JournalError(f"{path} has a first line that this Winnow cannot read: delete the file to start over.")
    if header.get("hash") == fingerprint(config):
        return
    old = header.get("config")
    old = old if isinstance(old, dict) else {}
    differing = [name for name in (*config, *(old.keys() - config.keys())) if old.get(name) != config.get(name)]
    told = ", ".join(f"{name} (there {_short(old.get(name))}, now {_short(config.get(name))})" for name in differing)
    raise JournalError(
        f"{path} holds work of another configuration, different in {told or 'its hash'}: repeat the earlier one to "
        "resume it, or delete the file, or give another name for the output."
    )


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 48 else f"{text[:45]}..."


def _truncate(path: Path, end: int) -> None:
    if path.stat().st_size > end:
        try:
            os.truncate(path, end)
        except OSError as problem:
            raise JournalError(f"Cannot write {path}: {problem.strerror}.") from None


def _write(path: Path, record: Mapping[str, Any], start: int | None = None) -> None:
    """One line at the end of the file; `start`: drop what the file has after that byte first."""
    line = json.dumps(record, separators=(",", ":")).encode() + b"\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if start is not None and path.exists():
            os.truncate(path, start)
        # Unbuffered, so that the line goes out in one piece.
        with path.open("ab", buffering=0) as file:
            file.write(line)
            os.fsync(file.fileno())
    except OSError as problem:
        raise JournalError(f"Cannot write {path}: {problem.strerror}.") from None
