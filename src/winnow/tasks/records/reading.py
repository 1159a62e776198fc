"""Records of files, each with its place for error texts."""

from __future__ import annotations

import io
from typing import Any, NamedTuple

from winnow.errors import FileError, JsonError
from winnow.files import decode
from winnow.strict_json import parse, parse_lines
from winnow.tasks.benchmark import BenchmarkError
from winnow.tasks.records.folder import Folder


class Record(NamedTuple):
    """An object of a file."""

    place: str
    """File and line."""
    fields: dict[str, Any]


def records(folder: Folder, file: str) -> list[Record]:
    """All records of a file of the folder. Raises BenchmarkError for one that cannot be read."""
    content = folder.files[file]()
    origin = str(folder.path) if folder.path.is_file() and file == folder.path.name else f"{folder.path}, {file}"
    found = _parquet(content, origin) if file.endswith(".parquet") else _json(content, origin)
    if not found:
        raise BenchmarkError(f"{origin} is empty.")
    return found


def _json(content: bytes, origin: str) -> list[Record]:
    """JSON lines; one object; a list of objects."""
    try:
        text = decode(content, origin)
        try:
            return [Record(f"{origin}, line {number}", fields) for number, fields in parse_lines(text)]
        except JsonError:
            whole = _whole(text)
            if whole is None:
                raise
            return [Record(f"{origin}, entry {number}", fields) for number, fields in enumerate(whole, start=1)]
    except FileError as problem:
        raise BenchmarkError(str(problem)) from None
    except JsonError as problem:
        raise BenchmarkError(f"{origin}: {problem}.") from None


def _whole(text: str) -> list[dict[str, Any]] | None:
    """Objects of a text that is one of them, or a list of them; None for another text."""
    try:
        value = parse(text)
    except JsonError:
        return None
    entries = value if isinstance(value, list) else [value]
    return entries if all(isinstance(entry, dict) for entry in entries) else None


def _parquet(content: bytes, origin: str) -> list[Record]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise BenchmarkError(
            f"{origin} is a Parquet file, which needs pyarrow: pip install 'winnow-kv[eval]'."
        ) from None
    try:
        rows = parquet.read_table(io.BytesIO(content)).to_pylist()
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError) as problem:
        reason = str(problem).split("\n", maxsplit=1)[0]
        raise BenchmarkError(f"{origin} is not a readable Parquet file ({reason}).") from None
    return [Record(f"{origin}, row {number}", fields) for number, fields in enumerate(rows, start=1)]
