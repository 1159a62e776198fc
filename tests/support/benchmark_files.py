"""Files of benchmarks with made-up rows, in the forms in which people have them."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Row = Mapping[str, Any]


def write_lines(path: Path, rows: Sequence[Row]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def write_zip(path: Path, files: Mapping[str, Sequence[Row]]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, rows in files.items():
            archive.writestr(name, "".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_parquet(path: Path, rows: Sequence[Row]) -> Path:
    import pyarrow
    from pyarrow import parquet

    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pyarrow.Table.from_pylist(list(rows)), path)
    return path


def longbench_row(number: int = 0, **changed: Any) -> dict[str, Any]:
    """A row of LongBench; braces and line breaks are in it, as in programs."""
    row = {
        "input": f"Who wrote {{it}} number {number}?\n",
        "context": "A long text {about} things.\nWith lines. {input} {context}\n",
        "answers": ["Anna", "Anna B."],
        "length": 3000 + 3000 * number,
        "dataset": "some",
        "language": "en",
        "all_classes": None,
        "_id": f"id{number}",
    }
    return row | changed
