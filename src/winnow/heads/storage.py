"""The file format of head scores: one safetensors tensor, and a JSON header in its metadata."""

from __future__ import annotations

import json
import os.path
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import safetensors
import safetensors.torch
import torch

from winnow.errors import FileError, HeadScoresError, JsonError
from winnow.files import has_text_name, reading, replacing, spelled_out
from winnow.heads.files import FileKind, file_kind
from winnow.strict_json import parse_object

if TYPE_CHECKING:
    from torch import Tensor

VERSION = 1
SUFFIX = ".safetensors"
TENSOR = "scores"
HEADER = "winnow_head_scores"


_NUMBERS = (
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8),
)
"""Types of a table's numbers; of others torch cannot even say whether they are finite."""


class TableKind(NamedTuple):
    """A kind of tables that are estimated once per model, in words for errors."""

    header: str
    """Name of the JSON header in a file's metadata."""
    version: int
    what: str
    """"head scores": the table itself."""
    writer: str
    """The command or function that writes such files."""
    again: str
    """The way to a new file, as in "save the table again"."""


SCORES = TableKind(
    HEADER, VERSION, "head scores", "HeadScores.save or winnow heads convert", "save the table again with this version"
)
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
    _check_name(path)
    described = json.dumps(header)
    try:
        parse_object(described)
    except JsonError as problem:
        raise HeadScoresError(f"{what} cannot be saved, as their facts could not be read again: {problem}.") from None
    content = safetensors.torch.save(tensors, metadata={name: described})
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
    tensors, header = read_tensors(path, SCORES)
    if TENSOR not in tensors:
        raise HeadScoresError(f"{path} has no tensor {TENSOR!r}: the file is damaged, save the table again.")
    if "method" not in header:
        raise HeadScoresError(f"{path} is damaged (its header names no method): save the table again.")
    # Facts that it does not name keep their defaults.
    return tensors[TENSOR], {field: header[name] for name, field in FIELDS.items() if name in header}


def read_tensors(path: Path | str, kind: TableKind) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """All tensors of a file that `write_tensors` wrote, and its header.

    Raises HeadScoresError for a file that is damaged, of another kind or of a later version; never unpickles.
    """
    _check_name(path)
    try:
        # A pipe would be waited for, where no interrupt is heard; and a file that is not there is not damaged.
        with reading(Path(path)), safetensors.safe_open(path, framework="pt") as file:
            header = _header(path, file.metadata() or {}, kind)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no mapping)
    except FileError as problem:
        raise HeadScoresError(str(problem)) from None
    except (safetensors.SafetensorError, OSError) as problem:
        raise HeadScoresError(
            f"{path} is damaged, or not a file of {kind.what} ({problem}): it may have been cut off while it was "
            f"copied; copy it again, or {kind.again}."
        ) from None
    for name, tensor in tensors.items():
        if tensor.dtype not in _NUMBERS:
            raise HeadScoresError(
                f"{path} has {name} as {str(tensor.dtype).removeprefix('torch.')}, which {kind.what} never are: "
                f"{kind.again}."
            )
    return tensors, header


def _check_name(path: Path | str) -> None:
    """Raises HeadScoresError for a name that safetensors cannot open."""
    if not has_text_name(path):
        raise HeadScoresError(f"{spelled_out(str(path))} is not a UTF-8 name, which safetensors needs: rename it.")


def _header(path: Path | str, metadata: dict[str, str], kind: TableKind) -> dict[str, Any]:
    """The JSON object in a file's metadata."""
    if kind.header not in metadata:
        raise HeadScoresError(
            f"{path} is a safetensors file without {kind.what} (no {kind.header} in its metadata): give a file that "
            f"{kind.writer} wrote."
        )
    try:
        header: dict[str, Any] = parse_object(metadata[kind.header])
    except JsonError as problem:
        raise HeadScoresError(f"{path} is damaged (its header: {problem}): {kind.again}.") from None
    if header.get("version") != kind.version:
        raise HeadScoresError(
            f"{path} has format version {header.get('version')!r}, but this Winnow reads version {kind.version}: "
            f"upgrade winnow-kv, or {kind.again}."
        )
    return header
