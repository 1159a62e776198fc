"""Files of contexts whose bytes were changed, and headers that no writer writes."""

from __future__ import annotations

import hashlib
import json
import random
import struct
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from support.crafted_contexts import opened, valid
from winnow.cache.container import FACTS, HEADER, PAYLOAD, write_container

BLOCK = 512
BLANK = "0" * 64


def attempt_damaged(name: str, seed: int, verify: bool) -> str:
    """The outcome of opening a file that is damaged by seed."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "context"
        path.write_bytes(damaged(_whole(name), random.Random(f"{name} {seed}")))
        return opened(name, path, verify)


def attempt_header(case: str, verify: bool) -> str:
    """The outcome of opening a file with one of HEADERS."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "context"
        path.write_bytes(HEADERS[case]())
        return opened("dense", path, verify)


@cache
def _whole(name: str) -> bytes:
    """The file of a context that is right."""
    with tempfile.TemporaryDirectory() as folder:
        return write_container(Path(folder) / "c", valid(name).facts, valid(name).tensors, False).read_bytes()


# --- damage -------------------------------------------------------------------------------------------------------


def damaged(whole: bytes, numbers: random.Random) -> bytes:
    """Other bytes, changed in one way or two."""
    found = whole
    while found == whole:
        for _ in range(numbers.choice((1, 1, 2))):
            found = numbers.choice(DAMAGES)(found, numbers)
    return found


def _flip_bits(content: bytes, numbers: random.Random) -> bytes:
    changed = bytearray(content)
    for _ in range(numbers.choice((1, 1, 2, 20, 400)) if content else 0):
        changed[numbers.randrange(len(changed))] ^= 1 << numbers.randrange(8)
    return bytes(changed)


def _cut(content: bytes, numbers: random.Random) -> bytes:
    left = numbers.choice(
        (0, 1, 7, 8, 9, 4096, len(content) - 1, len(content) - 64, numbers.randrange(len(content) + 1))
    )
    return content[: max(left, 0)]


def _append(content: bytes, numbers: random.Random) -> bytes:
    return content + numbers.choice((b"\n", b"\0", bytes(64), content[:8], content, numbers.randbytes(BLOCK)))


def _swap_blocks(content: bytes, numbers: random.Random) -> bytes:
    blocks = [content[at : at + BLOCK] for at in range(0, len(content), BLOCK)]
    one, other = numbers.randrange(len(blocks) or 1), numbers.randrange(len(blocks) or 1)
    if blocks:
        blocks[one], blocks[other] = blocks[other], blocks[one]
    return b"".join(blocks)


def _zero_page(content: bytes, numbers: random.Random) -> bytes:
    return _filled(content, numbers, bytes)


def _fill_page(content: bytes, numbers: random.Random) -> bytes:
    return _filled(content, numbers, numbers.randbytes)


def _filled(content: bytes, numbers: random.Random, filling: Callable[[int], bytes]) -> bytes:
    size = numbers.choice((1, 64, BLOCK, 4096))
    at = numbers.randrange(len(content) // size + 1) * size
    return content[:at] + filling(len(content[at : at + size])) + content[at + size :]


def _drop_block(content: bytes, numbers: random.Random) -> bytes:
    at = numbers.randrange(len(content) + 1)
    return content[:at] + content[at + numbers.choice((1, 8, 64, BLOCK)) :]


DAMAGES = [_flip_bits, _flip_bits, _cut, _append, _swap_blocks, _zero_page, _fill_page, _drop_block]


# --- headers ------------------------------------------------------------------------------------------------------


def sealed_file(header: bytes, payload: bytes = b"", length: int | None = None) -> bytes:
    """A file with right checksums, where the header has places for them."""
    header = _padded(header)
    start = struct.pack("<Q", len(header) if length is None else length)
    header = header.replace(f'"{PAYLOAD}":"{BLANK}"'.encode(), f'"{PAYLOAD}":"{_hash(payload)}"'.encode(), 1)
    seal = f'"{HEADER}":"{_hash(start + header)}"'.encode()
    return start + header.replace(f'"{HEADER}":"{BLANK}"'.encode(), seal, 1) + payload


def _padded(header: bytes) -> bytes:
    return header + b" " * (-(8 + len(header)) % 64)


def _hash(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=32).hexdigest()


def table_and_payload(name: str) -> tuple[dict[str, Any], bytes]:
    """Entries and tensors of the file of a context that is right."""
    whole = _whole(name)
    start = 8 + struct.unpack("<Q", whole[:8])[0]
    header = json.loads(whole[8:start])
    del header["__metadata__"]
    return header, whole[start:]


def _payload() -> bytes:
    return table_and_payload("dense")[1]


def _table() -> dict[str, Any]:
    return table_and_payload("dense")[0]


def _text(table: Any = None, facts: str | None = None, metadata: str | None = None) -> bytes:
    """A header's JSON; surrogates stay escaped."""
    told = json.dumps({"version": 1, **valid("dense").facts}) if facts is None else facts
    first = json.dumps({FACTS: told, PAYLOAD: BLANK, HEADER: BLANK}, separators=(",", ":"))
    rest = table if isinstance(table, str) else json.dumps(_table() if table is None else table)[1:-1]
    return (
        '{"__metadata__":' + (first if metadata is None else metadata) + (", " if rest else "") + rest + "}"
    ).encode()


def _with_facts(**changed: Any) -> bytes:
    return sealed_file(_text(facts=json.dumps({"version": 1, **valid("dense").facts, **changed})), _payload())


def _with_raw_facts(text: str) -> bytes:
    return sealed_file(_text(facts=text), _payload())


def _with_fact_text(old: str, new: str) -> bytes:
    """The facts, with the first place of a text replaced."""
    told = json.dumps({"version": 1, **valid("dense").facts})
    assert old in told
    return _with_raw_facts(told.replace(old, new, 1))


def _with_entry(raw: str) -> bytes:
    """The raw JSON of an entry in place of that of `input_ids`."""
    table = {name: entry for name, entry in _table().items() if name != "input_ids"}
    return sealed_file(_text(f'{json.dumps(table)[1:-1]}, "input_ids": {raw}'), _payload())


def _entry(dtype: str = '"I64"', shape: str = "[1, 40]", offsets: str | None = None) -> bytes:
    begin, end = _table()["input_ids"]["data_offsets"]
    offsets = f"[{begin}, {end}]" if offsets is None else offsets
    return _with_entry(f'{{"dtype": {dtype}, "shape": {shape}, "data_offsets": {offsets}}}')


def _more_entries(raw: str) -> bytes:
    return sealed_file(_text(f"{json.dumps(_table())[1:-1]}, {raw}"), _payload())


def _many_tensors() -> bytes:
    empty = '{"dtype":"U8","shape":[0],"data_offsets":[0,0]}'
    return _more_entries(",".join(f'"t{index}":{empty}' for index in range(10**6)))


def _nested(open: str, close: str, depth: int = 200_000, inside: str = "1") -> str:
    return open * depth + inside + close * depth


def _layer_fact(**changed: Any) -> bytes:
    layers = [{**layer, "full": {**layer["full"], **changed}} for layer in valid("dense").facts["layers"]]
    return _with_facts(layers=layers)


DIGITS = "9" * 400
_OBJECT = '{"a":'
_LONG = "9" * 4_000_000

HEADERS: dict[str, Callable[[], bytes]] = {
    # The length.
    "length 0": lambda: sealed_file(_text(), _payload(), 0),
    "length 1": lambda: sealed_file(_text(), _payload(), 1),
    "length 2^63": lambda: sealed_file(_text(), _payload(), 1 << 63),
    "length 2^64 - 1": lambda: sealed_file(_text(), _payload(), (1 << 64) - 1),
    "length one more": lambda: sealed_file(_text(), _payload(), len(_padded(_text())) + 1),
    "length alone": lambda: struct.pack("<Q", 100),
    "length of 99 MB, and 99 MB of spaces": lambda: sealed_file(_text() + b" " * 99_000_000, _payload()),
    # JSON.
    "lists, nested": lambda: sealed_file(_nested('{"a":[', "]}", 1, _nested("[", "]")).encode()),
    "objects, nested": lambda: sealed_file(_nested(_OBJECT, "}").encode()),
    "objects, nested and open": lambda: sealed_file(_OBJECT.encode() * 200_000),
    "lists in an entry": lambda: _with_entry(_nested("[", "]")),
    "lists in a shape": lambda: _entry(shape=_nested("[", "]")),
    "lists in the metadata": lambda: sealed_file(_text(metadata=_nested("[", "]")), _payload()),
    "lists in the facts": lambda: _with_raw_facts(_nested("[", "]")),
    "lists inside the facts": lambda: _with_fact_text('"tokens": 40', f'"tokens": {_nested("[", "]")}'),
    "objects inside the facts": lambda: _with_fact_text('"tokens": 40', f'"tokens": {_nested(_OBJECT, "}")}'),
    "a list": lambda: sealed_file(b"[1]"),
    "a list of objects": lambda: sealed_file(b"{}[]"),
    "an open string": lambda: sealed_file(b'{"'),
    "no UTF-8": lambda: sealed_file(b'{"\xff\xfe": 1}'),
    "UTF-16": lambda: sealed_file("{}".encode("utf-16")),
    "a byte order mark": lambda: sealed_file(b"\xef\xbb\xbf" + _text(), _payload()),
    "a number of millions of digits": lambda: sealed_file(_text(f'"a": {_LONG}'), _payload()),
    # Metadata and facts.
    "metadata is a list": lambda: sealed_file(_text(metadata="[]"), _payload()),
    "metadata is null": lambda: sealed_file(_text(metadata="null"), _payload()),
    "metadata with numbers": lambda: sealed_file(
        _text(metadata=f'{{"{FACTS}": 5, "{PAYLOAD}": 1, "{HEADER}": 2}}'), _payload()
    ),
    "metadata twice": lambda: _more_entries('"__metadata__": {}'),
    "facts twice": lambda: sealed_file(
        _text(metadata=f'{{"{FACTS}": "{{}}", "{FACTS}": "[]", "{PAYLOAD}":"{BLANK}", "{HEADER}":"{BLANK}"}}'),
        _payload(),
    ),
    "checksum of the header twice": lambda: sealed_file(
        _text().replace(b'"__metadata__":{', f'"__metadata__":{{"{HEADER}":"{BLANK}",'.encode(), 1), _payload()
    ),
    "facts are a list": lambda: _with_raw_facts("[1]"),
    "facts are pairs": lambda: _with_raw_facts('[["version", 1]]'),
    "facts are a number": lambda: _with_raw_facts("1"),
    "facts are null": lambda: _with_raw_facts("null"),
    "facts are empty": lambda: _with_raw_facts("{}"),
    "version 1e999": lambda: _with_fact_text('"version": 1', '"version": 1e999'),
    "version NaN": lambda: _with_fact_text('"version": 1', '"version": NaN'),
    "version of 400 digits": lambda: _with_fact_text('"version": 1', f'"version": {DIGITS}'),
    "version of 5,000 digits": lambda: _with_fact_text('"version": 1', f'"version": {"9" * 5000}'),
    "version is a list": lambda: _with_facts(version=[1]),
    "tokens 1e999": lambda: _with_fact_text('"tokens": 40', '"tokens": 1e999'),
    "tokens of 400 digits": lambda: _with_fact_text('"tokens": 40', f'"tokens": {DIGITS}'),
    "layers are null": lambda: _with_facts(layers=None),
    "layers are an object": lambda: _with_facts(layers={"0": 1}),
    "a million layers": lambda: _with_facts(layers=[{"kind": "none"}] * 10**6),
    "no layers": lambda: _with_facts(layers=[]),
    "a hundred thousand rows": lambda: _layer_fact(rows=[0] * 10**5),
    "no rows": lambda: _layer_fact(rows=[]),
    "2^40 heads": lambda: _layer_fact(heads=1 << 40),
    "a key dimension of 2^40": lambda: _layer_fact(key_dim=1 << 40),
    "a value dimension of -1": lambda: _layer_fact(value_dim=-1),
    "seen of 400 digits": lambda: _layer_fact(seen=int(DIGITS)),
    "the dtype is a function": lambda: _layer_fact(dtype="load"),
    "the dtype is 10 MB": lambda: _layer_fact(dtype="x" * 10**7),
    # Entries.
    "an entry is null": lambda: _with_entry("null"),
    "an entry is a list": lambda: _with_entry("[]"),
    "an entry is empty": lambda: _with_entry("{}"),
    "offsets overlap": lambda: _entry(offsets="[64, 384]"),
    "offsets are negative": lambda: _entry(offsets="[-320, 0]"),
    "offsets descend": lambda: _entry(offsets="[320, 0]"),
    "offsets are three": lambda: _entry(offsets="[0, 320, 640]"),
    "offsets are one": lambda: _entry(offsets="[0]"),
    "offsets are 1e999": lambda: _entry(offsets="[0, 1e999]"),
    "offsets are fractions": lambda: _entry(offsets="[0.5, 320.5]"),
    "offsets are texts": lambda: _entry(offsets='["0", "320"]'),
    "offsets are truths": lambda: _entry(offsets="[false, true]"),
    "offsets are 2^63": lambda: _entry(offsets=f"[{1 << 63}, {(1 << 63) + 320}]"),
    "offsets of 400 digits": lambda: _entry(offsets=f"[0, {DIGITS}]"),
    "offsets leave a gap": lambda: _entry(offsets="[999999, 1000319]"),
    "the dtype is unknown": lambda: _entry(dtype='"F99"'),
    "the dtype is of another library": lambda: _entry(dtype='"F8_E4M3"'),
    "the dtype is a number": lambda: _entry(dtype="5"),
    "the shape is null": lambda: _entry(shape="null"),
    "the shape is negative": lambda: _entry(shape="[-1, -40]"),
    "the shape is huge": lambda: _entry(shape=f"[{1 << 62}, 4]"),
    "the shape is empty and huge": lambda: _entry(shape=f"[0, {1 << 63}]", offsets="[0, 0]"),
    "the shape is 1e999": lambda: _entry(shape="[1e999]"),
    "the shape is a fraction": lambda: _entry(shape="[1, 40.5]"),
    "the shape is a truth": lambda: _entry(shape="[true, 40]"),
    "the shape has ten million axes": lambda: _entry(shape=f"[{'1,' * 10**7}40]"),
    "the shape has a hundred axes": lambda: _entry(shape=f"[{'1,' * 100}40]"),
    "a tensor twice": lambda: _more_entries(f'"input_ids": {json.dumps(_table()["input_ids"])}'),
    "a name with a surrogate": lambda: _more_entries(
        '"\\ud800": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}'
    ),
    "a million tensors": _many_tensors,
    "no tensors": lambda: sealed_file(_text({})),
}
"""Contents of files by what is wrong with them."""
