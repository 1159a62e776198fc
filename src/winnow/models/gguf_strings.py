"""Lists in GGUF files, such as tokens and merges, read in one pass.

The reader of the package gguf makes several views of a mapped file for every string, 450,000 in some files.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np

_LIST, _TEXT, _NUMBER = 9, 8, 5
"""Kinds of values in a file: a list, and of what it may be; integers of 32 bits here."""
_SAMPLES = (
    struct.pack("=IQQ2sQ3s", _TEXT, 2, 2, b"he", 3, b"\xc3\xa9!"),
    struct.pack("=IQiii", _NUMBER, 3, 1, -2, 3),
    struct.pack("=IQ", _TEXT, 0),
)


@contextmanager
def lists_in_one_pass() -> Iterator[None]:
    """Lets transformers, which asks the package gguf for its reader, read lists many times faster meanwhile."""
    import gguf

    package: Any = gguf
    plain = package.GGUFReader
    # Another thread may have it in place already, or a user one of his own.
    quick = _quick(plain) if plain.__module__ == "gguf.gguf_reader" else None
    if quick is None:
        yield
        return
    package.GGUFReader = quick
    try:
        yield
    finally:
        package.GGUFReader = plain


@cache
def _quick(plain: Any) -> Any:
    """A reader as the given one that is faster with lists; None for a release in which it would read otherwise."""

    class Quick(plain):  # type: ignore[misc]
        def _get_field_parts(self, orig_offs: int, raw_type: int) -> Any:
            found = _list_at(self, orig_offs) if raw_type == _LIST and self.byte_order == "I" else None
            return super()._get_field_parts(orig_offs, raw_type) if found is None else found

    try:
        same = all(_reads_the_same(plain, Quick, sample) for sample in _SAMPLES)
    except Exception:  # whatever a release without these names raises
        same = False
    return Quick if same else None


def _list_at(reader: Any, start: int) -> Any:
    """Size, parts, indices and types of a list of strings or numbers as `_get_field_parts` has it; None of another."""
    from gguf.constants import GGUFValueType

    data = np.asarray(reader.data)
    kind, count = struct.unpack_from("=IQ", data.data, start)
    at = start + 12
    parts = [data[start : start + 4].view(np.uint32), data[start + 4 : at].view(np.uint64)]
    type_ = GGUFValueType(kind)
    if kind == _TEXT:
        memory = data.data
        for _ in range(count):
            first = at + 8
            (length,) = struct.unpack_from("=Q", memory, at)
            parts += data[at:first].view(np.uint64), data[first : (at := first + length)]
    elif (number := reader.gguf_scalar_to_np.get(type_)) is not None:
        size = np.dtype(number).itemsize
        numbers = data[at : (at := at + count * size)].view(number)
        if len(numbers) < count:
            raise ValueError("The file ends within a list.")
        parts += (numbers[index : index + 1] for index in range(count))
    else:
        return None
    step = 2 if kind == _TEXT else 1
    types = [GGUFValueType.ARRAY, *([type_] if count else [])]
    return at - start, parts, list(range(step + 1, len(parts), step)), types


def _reads_the_same(plain: Any, quick: Any, sample: bytes) -> bool:
    reader = object.__new__(quick)
    reader.data = np.frombuffer(b"...." + sample, np.uint8)
    size, parts, indices, types = plain._get_field_parts(reader, 4, _LIST)
    found = _list_at(reader, 4)
    return (
        found[0] == size
        and [(part.dtype, part.tobytes()) for part in found[1]] == [(part.dtype, part.tobytes()) for part in parts]
        and (found[2], found[3]) == (indices, types)
    )
