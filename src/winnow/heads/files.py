"""Formats of files, told from their first bytes; nothing that could run code is ever opened."""

from __future__ import annotations

from enum import Enum
from pathlib import Path

import torch
from torch import Tensor

from winnow import files
from winnow.errors import FileError, HeadScoresError, JsonError
from winnow.strict_json import parse_object


class FileKind(Enum):
    """Formats that tables of head scores come in."""

    SAFETENSORS = "a safetensors file"
    JSON = "a JSON file"
    TSV = "a text table"


_SUFFIXES = {".safetensors": FileKind.SAFETENSORS, ".json": FileKind.JSON, ".tsv": FileKind.TSV}

# First bytes, and what they say. A pickle of protocol 2 or later starts with 0x80 and its protocol.
_FOREIGN = {
    b"PK\x03\x04": "a zip archive, as torch.save and numpy.savez write it",
    b"\x93NUMPY": "a NumPy file",
    b"\x80\x02": "a pickle",
    b"\x80\x03": "a pickle",
    b"\x80\x04": "a pickle",
    b"\x80\x05": "a pickle",
    b"\x1f\x8b": "compressed with gzip",
    b"\x89HDF": "an HDF5 file",
}


def file_kind(path: Path) -> FileKind:
    """The format of a file, by suffix, after its first bytes were looked at.

    Raises HeadScoresError for what is no file, cannot be read or is in a format that Winnow does not open.
    """
    start = _first_bytes(path)
    if not start:
        raise HeadScoresError(f"{path} is empty: copy or save it again.")
    if not _is_safetensors(start):
        _refuse_foreign(path, start)
    kind = _SUFFIXES.get(path.suffix.lower())
    if kind is None:
        raise HeadScoresError(
            f"{path} has an unknown suffix: tables of head scores are .safetensors (Winnow's own), .json (HeadKV, "
            "CoKV) or .tsv (DuoAttention); rename the file if it is one of these."
        )
    return kind


def read_text(path: Path, kind: FileKind, layout: str) -> str:
    """The text of a file of this kind; layout: what the caller expects, for the error. Raises HeadScoresError."""
    found = file_kind(path)
    if found is not kind:
        raise HeadScoresError(f"{path} is {found.value}, not {layout}: read_scores tells the formats apart itself.")
    try:
        return files.read_text(path)
    except FileError as problem:
        raise HeadScoresError(str(problem)) from None


def read_json(path: Path, layout: str) -> dict[str, object]:
    """The object in a JSON file. Raises HeadScoresError where there is none."""
    text = read_text(path, FileKind.JSON, layout)
    try:
        return parse_object(text)
    except JsonError as problem:
        raise HeadScoresError(f"{path} is not {layout}, or was damaged: {problem}. Copy it again.") from None


def numbers(values: object, what: str) -> Tensor:
    """[n] float64 of a list from JSON. Raises HeadScoresError, naming `what`, where it is no list of numbers."""
    if not isinstance(values, list):
        raise HeadScoresError(f"{what} is not a list of numbers, but {type(values).__name__}.")
    for index, value in enumerate(values):
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise HeadScoresError(f"{what} has {value!r} at place {index}, which is not a number.")
    try:
        return torch.tensor([float(value) for value in values], dtype=torch.float64, device="cpu")
    except OverflowError:
        raise HeadScoresError(f"{what} has a number that is too large to be a score.") from None


def _first_bytes(path: Path) -> bytes:
    try:
        with files.reading(path) as file:
            return file.read(16)
    except FileError as problem:
        raise HeadScoresError(str(problem)) from None


def _is_safetensors(start: bytes) -> bool:
    """Eight bytes of length, then JSON. The length can look like a pickle's first bytes: 640 is 0x80 0x02."""
    return start[3:8] == bytes(5) and start[8:9] == b"{"


def _refuse_foreign(path: Path, start: bytes) -> None:
    for magic, meaning in _FOREIGN.items():
        if start.startswith(magic):
            raise HeadScoresError(
                f"{path} is {meaning}, which Winnow does not open, as such files can run code when they are read: "
                'open it where you trust it, then HeadScores(values, method="...").save("scores.safetensors").'
            )
