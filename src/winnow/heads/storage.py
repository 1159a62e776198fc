"""The file format of head scores: one safetensors tensor, and a JSON header in its metadata."""

from __future__ import annotations

import json
import os.path
from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors
import safetensors.torch

from winnow.errors import FileError, HeadScoresError, JsonError
from winnow.files import replacing
from winnow.heads.files import FileKind, file_kind
from winnow.strict_json import parse_object

if TYPE_CHECKING:
    from torch import Tensor

VERSION = 1
SUFFIX = ".safetensors"
TENSOR = "scores"
HEADER = "winnow_head_scores"
_FACTS = ("method", "heads", "model", "seed", "samples", "date", "licence", "notes", "settings")
FIELDS = {name: name for name in _FACTS} | {"licence": "license"}
"""Name of a fact in the header -> field of HeadScores."""


def write_scores(path: Path, values: Tensor, facts: dict[str, str | int | None]) -> Path:
    """Writes values [L, H], and facts by their names in the header. Raises HeadScoresError where that cannot be."""
    return write_tensors(path, {TENSOR: values}, HEADER, {"version": VERSION, **facts}, "Head scores")


def write_tensors(path: Path, tensors: dict[str, Tensor], name: str, header: dict[str, Any], what: str) -> Path:
    """Writes tensors and, as JSON under `name` in the metadata, a header; `what` they are is for errors.

    Raises HeadScoresError where that cannot be.
    """
    if os.path.isdir(path):
        raise HeadScoresError(f"{path} is a directory; name a file in it.")
    if path.suffix.lower() != SUFFIX:
        raise HeadScoresError(f"{what} are saved as {SUFFIX}: name the file {path.with_suffix(SUFFIX).name}.")
    content = safetensors.torch.save(tensors, metadata={name: json.dumps(header)})
    try:
        with replacing(path) as file:
            file.write(content)
    except FileError as problem:
        raise HeadScoresError(str(problem)) from None
    return path


def read_scores_file(path: Path) -> tuple[Tensor, dict[str, Any]]:
    """Values of a file that `write_scores` wrote, and facts by field. Raises HeadScoresError, never unpickles."""
    kind = file_kind(path)
    if kind is not FileKind.SAFETENSORS:
        raise HeadScoresError(
            f"{path} is {kind.value}, not a {SUFFIX} file of head scores: read_scores reads published tables, and "
            f"winnow heads convert {path} -o scores{SUFFIX} turns one into such a file."
        )
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            facts = _facts(path, file.metadata() or {})
            if TENSOR not in file.keys():  # noqa: SIM118 (the file is no mapping)
                raise HeadScoresError(f"{path} has no tensor {TENSOR!r}: the file is damaged, save the table again.")
            return file.get_tensor(TENSOR), facts
    except (safetensors.SafetensorError, OSError) as problem:
        raise HeadScoresError(
            f"{path} is damaged ({problem}): it may have been cut off while it was copied; copy or save it again."
        ) from None


def read_header(path: Path, metadata: dict[str, str], name: str, missing: str) -> dict[str, Any]:
    """The JSON object under `name` in a file's metadata. Raises HeadScoresError; `missing`: where there is none."""
    if name not in metadata:
        raise HeadScoresError(f"{path} is a safetensors file without {missing}")
    try:
        header: dict[str, Any] = parse_object(metadata[name])
    except JsonError as problem:
        raise HeadScoresError(f"{path} is damaged (its header: {problem}): save the table again.") from None
    return header


def _facts(path: Path, metadata: dict[str, str]) -> dict[str, Any]:
    """The header without its version, by field; facts that it does not name keep their defaults."""
    missing = f"head scores (no {HEADER} in its metadata): give a file that "
    missing += "HeadScores.save or winnow heads convert wrote."
    header = read_header(path, metadata, HEADER, missing)
    if "method" not in header:
        raise HeadScoresError(f"{path} is damaged (its header names no method): save the table again.")
    if header.get("version") != VERSION:
        raise HeadScoresError(
            f"{path} has format version {header.get('version')!r}, this Winnow reads version {VERSION}: "
            "upgrade winnow-kv, or save the table again with this version."
        )
    return {field: header[name] for name, field in FIELDS.items() if name in header}
