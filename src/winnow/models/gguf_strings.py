"""Lists in GGUF files, such as tokens and merges, read in one pass.

The reader of the package gguf makes several views of a mapped file for every string, 450,000 in some files. So does
that of transformers, which then takes every string apart byte by byte.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np

from winnow.models.meanwhile import meanwhile

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
    from transformers import modeling_gguf_pytorch_utils as unpacking  # what it imports is for such files only

    with ExitStack() as changed:
        # Another thread may have it in place already, or a user one of his own.
        _put(changed, gguf, "GGUFReader", "gguf.gguf_reader", _quick)
        _put(changed, unpacking, "_gguf_parse_value", "transformers.integrations.ggml", _quick_value)
        if find_spec("transformers.integrations.gguf") is not None:  # of releases that have a reader of their own
            from transformers.integrations.gguf import reader

            _put(changed, reader, "_mapped", reader.__name__, _as_plain_array)
        yield


def _put(changed: ExitStack, owner: Any, name: str, home: str, quicker: Callable[[Any], Any]) -> None:
    """Puts what is quicker in place of something that is from its home still, until all is put back."""
    plain = getattr(owner, name, None)
    quick = quicker(plain) if getattr(plain, "__module__", None) == home else None
    if quick is not None:
        changed.enter_context(meanwhile(owner, name, quick))


@cache
def _quick_value(plain: Any) -> Any:
    """A function as `plain`, of values in a file, faster for elements of lists; None for a release with another."""

    def quick(value: Any, types: Any) -> Any:
        if len(types) == 2 and types[0] == _LIST:
            if types[1] == _TEXT:
                return value.tobytes().decode()
            if types[1] == _NUMBER:
                return int(value[0])
        return plain(value, types)

    samples = ((np.frombuffer("hé!".encode(), np.uint8), [_LIST, _TEXT]), (np.array([-3], np.int32), [_LIST, _NUMBER]))
    try:
        return quick if all(quick(*sample) == plain(*sample) for sample in samples) else None
    except Exception:  # whatever a release with other arguments raises
        return None


@cache
def _as_plain_array(plain: Any) -> Any:
    """Maps a file as `plain` does, as an array of numpy's plain class, of which parts are taken faster."""
    return lambda path: np.asarray(plain(path)).view(np.ndarray)


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
