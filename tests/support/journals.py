"""Journals with lines that nobody wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from winnow.estimate.journal import HASH, record_hash


def lines_of(path: Path) -> list[bytes]:
    """All lines with their line breaks."""
    return path.read_bytes().splitlines(keepends=True)


def crafted(path: Path, record: Any) -> bytes:
    """A line of the journal for a record, with the right hash."""
    header = json.loads(lines_of(path)[0])
    return json.dumps({**record, HASH: record_hash(header, record)}).encode() + b"\n"


def record_of(line: bytes) -> dict[str, Any]:
    """The record of a line, without its hash."""
    record: dict[str, Any] = json.loads(line)
    del record[HASH]
    return record
