"""A safetensors file that notices what happened to it: one checksum over its header, one over its tensors.

The layout is plain safetensors, so any reader of that format opens it. Written here rather than by the library so that
tensors are streamed to the disk and hashed in one pass, and so that they lie aligned for the kernels: the data begin at
a multiple of `ALIGNMENT`, and tensors whose size is a multiple of a higher power of two come first.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import safetensors
import torch
from torch import Tensor

from winnow.errors import ContextError, FileError, JsonError
from winnow.files import has_text_name, reading, replacing
from winnow.strict_json import parse_object
from winnow.typed import Between, TypedError, read_as

VERSION = 1
ALIGNMENT = 64
FACTS, PAYLOAD, HEADER = "winnow_context", "winnow_payload_blake2b", "winnow_header_blake2b"

_LENGTH = struct.Struct("<Q")
_SAFETENSORS_HEADER = 100_000_000  # the limit of the format
_LONGEST_HEADER = 1 << 24
"""Bytes; thousands of rows and layers need less, and parsing takes many times the memory."""
_BLANK = "0" * 64
_PIECE = 1 << 22

_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


_Size = Annotated[int, Between(0, 1 << 50)]


@dataclass(frozen=True)
class _Entry:
    """One tensor in the table of a header."""

    dtype: str
    shape: list[_Size]
    data_offsets: tuple[_Size, _Size]


_METADATA, _TABLE = dict[str, str], dict[str, _Entry]


@dataclass(frozen=True)
class Container:
    """A file whose header was checked; tensors are read, and the rest is checked, on demand."""

    path: Path
    facts: dict[str, Any]
    """The facts given to `write_container`."""
    payload: str
    """Checksum of everything after the header."""
    start: int
    """First byte of the tensors."""

    @classmethod
    def open(cls, path: Path) -> Container:
        """Reads the header only. Raises ContextError for what is no context, of a newer version, cut off or changed."""
        with _opened(path) as file:
            return _read_header(path, file)

    def verify(self) -> None:
        """Reads the whole file. Raises ContextError where its tensors were changed, or it was replaced."""
        with _opened(self.path) as file:
            self._check_same(_read_header(self.path, file))
            file.seek(self.start)
            found = _hash(file)
        if found != self.payload:
            raise ContextError(
                f"{self.path} is damaged: its content was changed after it was written. Copy it again, or compress "
                "the document again."
            )

    def tensors(self) -> dict[str, Tensor]:
        """All tensors by name, on the CPU: views of one private mapping of the file, read when they are touched.

        Raises ContextError where they cannot be read, or the file was replaced since its header was.
        """
        try:
            with safetensors.safe_open(self.path, framework="pt") as file:
                found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (the file is no mapping)
        except (safetensors.SafetensorError, OSError) as problem:
            raise _damaged(self.path, str(problem)) from None
        # The library opens the path by itself, so what it mapped may be another file by now.
        self._check_same(Container.open(self.path))
        return found

    def _check_same(self, now: Container) -> None:
        if now != self:
            raise ContextError(f"{self.path} was replaced while it was read: load it again.")


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """A file to read from. Raises ContextError where there is none, or reading fails."""
    try:
        with reading(path) as file:
            yield file
    except FileError as problem:
        raise ContextError(str(problem)) from None


def write_container(path: Path, facts: Mapping[str, Any], tensors: Mapping[str, Tensor], overwrite: bool) -> Path:
    """Writes facts (JSON) and tensors. Nothing under `path` changes unless everything was written.

    Raises ContextError where the file exists and is not to be overwritten, or cannot be written, and for a name that
    could not be read back.
    """
    size = sum(tensor.nbytes for tensor in tensors.values())
    check_name(path)
    try:
        with replacing(path, overwrite, size) as file:
            _write(file, facts, tensors)
    except FileError as problem:
        raise ContextError(str(problem)) from None
    return path


def check_name(path: Path) -> None:
    """Raises ContextError for a name that could not be read back: the library that maps tensors takes UTF-8 only."""
    if not has_text_name(path):
        raise ContextError(f"{path} is not a UTF-8 name, which a context needs; give another one.")


def _write(file: BinaryIO, facts: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """The tensors in one pass, then the header that tells their checksum; it is as long with it as without."""
    ordered = dict(sorted(tensors.items(), key=lambda named: -math.gcd(named[1].nbytes, ALIGNMENT)))
    table = _table(ordered)
    told = json.dumps({"version": VERSION, **facts}, ensure_ascii=False)
    file.write(_header(told, table, _BLANK))
    digest = _digest()
    for tensor in ordered.values():
        content = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
        digest.update(content)
        file.write(content)
    file.seek(0)
    file.write(_header(told, table, digest.hexdigest()))


def _table(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    table, begin = {}, 0
    for name, tensor in tensors.items():
        end = begin + tensor.nbytes
        table[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
        begin = end
    return table


def _header(facts: str, table: Mapping[str, Any], payload: str) -> bytes:
    """Length and JSON, with its own checksum, padded so that the data are aligned."""
    metadata = {FACTS: facts, PAYLOAD: payload, HEADER: _BLANK}
    text = json.dumps({"__metadata__": metadata, **table}, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-(_LENGTH.size + len(text)) % ALIGNMENT)
    if len(text) > _LONGEST_HEADER:
        raise ContextError("this context has too many rows and layers for one file; save rows in separate files.")
    blank = _LENGTH.pack(len(text)) + text
    return _sealed(blank, _digest(blank).hexdigest())


def _sealed(header: bytes, seal: str) -> bytes:
    """A header with its checksum replaced."""
    pattern = rb'("%s":")[0-9a-f]{64}"' % HEADER.encode()
    return re.sub(pattern, rb'\g<1>%s"' % seal.encode(), header, count=1)


def _read_header(path: Path, file: BinaryIO) -> Container:
    size = os.fstat(file.fileno()).st_size
    begin = file.read(_LENGTH.size)
    length = _LENGTH.unpack(begin)[0] if len(begin) == _LENGTH.size else 0
    if not 2 <= length <= _SAFETENSORS_HEADER or file.read(1) != b"{":
        raise _foreign(path)
    if _LENGTH.size + length > size:
        raise _damaged(path, f"its header alone is {length:,} bytes, and it has {size:,}")
    if length > _LONGEST_HEADER:
        raise _damaged(path, f"its header is {length:,} bytes, of {_LONGEST_HEADER:,} at most")
    file.seek(_LENGTH.size)
    text = file.read(length)
    metadata, end = _parse(path, text)
    facts = _facts(path, metadata)
    if _digest(_sealed(begin + text, _BLANK)).hexdigest() != metadata.get(HEADER):
        raise ContextError(
            f"{path} is damaged: its header was changed after it was written. Copy it again, or compress the document "
            "again."
        )
    expected = _LENGTH.size + length + end
    if size != expected:
        raise _damaged(path, f"{size:,} of {expected:,} bytes")
    return Container(path, facts, str(metadata.get(PAYLOAD)), _LENGTH.size + length)


def _parse(path: Path, text: bytes) -> tuple[dict[str, str], int]:
    """Metadata of a header, and how many bytes of tensors follow it."""
    header = _json(path, text)
    try:
        metadata = read_as(_METADATA, header.pop("__metadata__", {}), "its metadata")
        table = read_as(_TABLE, header, "its table")
    except TypedError as problem:
        raise _damaged(path, str(problem)) from None
    return metadata, max((entry.data_offsets[1] for entry in table.values()), default=0)


def _facts(path: Path, metadata: Mapping[str, str]) -> dict[str, Any]:
    if FACTS not in metadata:
        raise _foreign(path)
    facts = _json(path, metadata[FACTS].encode())
    version = facts.get("version")
    if type(version) is not int:
        raise _damaged(path, "its header cannot be read")
    if version != VERSION:
        raise ContextError(
            f"{path} has format version {version}, but this Winnow reads version {VERSION}: upgrade winnow-kv, or "
            "compress the document again."
        )
    return facts


def _json(path: Path, text: bytes) -> dict[str, Any]:
    try:
        return parse_object(text.decode())
    except (JsonError, UnicodeDecodeError):
        raise _damaged(path, "its header cannot be read") from None


def _foreign(path: Path) -> ContextError:
    return ContextError(
        f"{path} is not a context: give a file that `winnow compress DOCUMENT -o FILE` or context.save wrote."
    )


def _damaged(path: Path, what: str) -> ContextError:
    return ContextError(
        f"{path} is damaged ({what}): it may have been cut off while it was copied. Copy it again, or compress the "
        "document again."
    )


def _hash(file: BinaryIO) -> str:
    """Checksum of a file from its current place to its end."""
    digest = _digest()
    while piece := file.read(_PIECE):
        digest.update(piece)
    return digest.hexdigest()


def _digest(start: bytes = b"") -> hashlib.blake2b:
    return hashlib.blake2b(start, digest_size=32)
