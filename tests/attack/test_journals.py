"""Journals of every command that keeps one: damaged, cut off, put together anew, contradicting, and absurd.

Every case ends in one of two ways: the journal is refused with the number of a line and stays as it is, or the results
are those of the journal that was written.
"""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.attack import seeds
from support.journal_users import USERS, JournalUser
from support.journals import crafted, lines_of, record_of
from winnow.estimate.errors import JournalError

pytestmark = pytest.mark.usefixtures("one_thread")

Damage = Callable[[random.Random, Path], bool]
"""Changes a journal; true if it must be refused."""

ABSURD: list[Any] = [1e308, -1, 10**400, None, {"a": {}}, [[[]]], -1e-300, [], "9"]
TOLD = re.compile(
    r", line \d+: |is not a journal of Winnow|byte order mark|does not exist, or is empty"
    # Merging what is left of a shard.
    r"|by any of these shards|in no sampled coalition|agree no better than chance"
)


class Written:
    """A user of journals, with the journal that it wrote and its results."""

    def __init__(self, name: str, folder: Path) -> None:
        self.user: JournalUser = USERS[name]()
        self.folder = folder
        self.expected = self.user.result(folder / "j.jsonl")
        assert self.user.result(folder / "j.jsonl") == self.expected


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Written]:
    known: dict[str, Written] = {}

    def of(name: str) -> Written:
        if name not in known:
            known[name] = Written(name, tmp_path_factory.mktemp(name))
        return known[name]

    return of


def flipped(rng: random.Random, path: Path) -> bool:
    content = bytearray(path.read_bytes())
    for _ in range(rng.choice((1, 1, 2, 50))):
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)
    return False


def overwritten(rng: random.Random, path: Path) -> bool:
    content = bytearray(path.read_bytes())
    begin = rng.randrange(len(content))
    count = rng.choice((1, 7, 64, 512))
    content[begin : begin + count] = rng.choice((b"\0", b"\xff", b"\n", b"9", b"[")) * len(
        content[begin : begin + count]
    )
    path.write_bytes(content)
    return False


def cut_off(rng: random.Random, path: Path) -> bool:
    content = path.read_bytes()
    path.write_bytes(content[: rng.randrange(len(content))])
    return False


def without_a_part(rng: random.Random, path: Path) -> bool:
    content = path.read_bytes()
    begin, end = sorted(rng.randrange(len(content)) for _ in range(2))
    path.write_bytes(content[:begin] + content[end:])
    return False


def with_a_part_twice(rng: random.Random, path: Path) -> bool:
    content = path.read_bytes()
    begin, end = sorted(rng.randrange(len(content)) for _ in range(2))
    at = rng.randrange(len(content))
    path.write_bytes(content[:at] + content[begin:end] + content[at:])
    return False


def in_another_order(rng: random.Random, path: Path) -> bool:
    header, *lines = lines_of(path)
    lines = rng.choices(lines, k=rng.randrange(2 * len(lines))) if rng.random() < 0.5 else rng.sample(lines, len(lines))
    path.write_bytes(b"".join([header, *lines]))
    return False


def with_other_line_breaks(rng: random.Random, path: Path) -> bool:
    breaks = rng.choice((b"\r\n", b"\r", b"\n\n", b" \n", b"\n ", b"\x0b", b"\xe2\x80\xa8"))
    path.write_bytes(path.read_bytes().replace(b"\n", breaks))
    return False


def with_a_mark(rng: random.Random, path: Path) -> bool:
    mark, encoding = rng.choice(((b"\xef\xbb\xbf", "utf-8"), (b"\xff\xfe", "utf-16-le"), (b"", "utf-32")))
    path.write_bytes(mark + path.read_text().encode(encoding))
    return True


def with_garbage_in_between(rng: random.Random, path: Path) -> bool:
    lines = lines_of(path)
    at = rng.randrange(1, len(lines))
    garbage = rng.choice(
        (b"\n", b"\0" * 9 + b"\n", b"notes of mine\n", b"null\n", b"7\n", b"[]\n", b"{}\n", b"{" * 9000)
    )
    path.write_bytes(b"".join([*lines[:at], garbage, *lines[at:]]))
    return True


def with_absurd_numbers(rng: random.Random, path: Path) -> bool:
    lines = lines_of(path)
    at = rng.randrange(1, len(lines))
    numbers = [found.span() for found in re.finditer(rb"(?<=[:,\[])[-\d.e]+", lines[at])]
    if not numbers:
        return False
    begin, end = rng.choice(numbers)
    deep = b"[" * 20_000 + b"]" * 20_000
    number = rng.choice((b"NaN", b"Infinity", b"-Infinity", b"1e999", b"9" * 5000, deep, b"0x1", b"1_0", b"01"))
    lines[at] = lines[at][:begin] + number + lines[at][end:]
    path.write_bytes(b"".join(lines))
    return True


def with_an_absurd_record(rng: random.Random, path: Path) -> bool:
    """Its hash is right: whoever wrote it knew how."""
    lines = lines_of(path)
    at = rng.randrange(1, len(lines))
    lines[at] = crafted(path, absurd(rng, record_of(lines[at])))
    path.write_bytes(b"".join(lines))
    return True


def absurd(rng: random.Random, record: dict[str, Any]) -> dict[str, Any]:
    name = rng.choice(list(record))
    match rng.randrange(4):
        case 0:
            del record[name]
        case 1:
            record[f"{name} too"] = record[name]
        case 2:
            record[name] = rng.choice([value for value in ABSURD if not isinstance(value, type(record[name]))])
        case _:
            place, key = inside(rng, record, name)
            place[key] = rng.choice(ABSURD[:6])
    return record


def inside(rng: random.Random, place: Any, key: Any) -> tuple[Any, Any]:
    """The place of a value somewhere below."""
    while isinstance(place[key], list | dict) and place[key]:
        place = place[key]
        key = rng.choice(list(place)) if isinstance(place, dict) else rng.randrange(len(place))
    return place, key


def contradicting(rng: random.Random, path: Path) -> bool:
    """The same work, with the result of another one or a valid result changed a little."""
    lines = lines_of(path)
    at = rng.randrange(1, len(lines))
    record = record_of(lines[at])
    name = {"u": "u", "scores": "answer", "right": "right", "facts": "facts", "slots": "slots"}[
        next(field for field in ("u", "scores", "right", "facts", "slots") if field in record)
    ]
    if name == "answer":
        record[name] += " or so"
    elif name == "slots":
        record[name] += 1
    else:
        place, key = inside(rng, record, name)
        place[key] = not place[key] if isinstance(place[key], bool) else (0.125 if place[key] != 0.125 else 0.25)
    lines.insert(rng.randrange(1, len(lines) + 1), crafted(path, record))
    path.write_bytes(b"".join(lines))
    return True


def of_another_configuration(rng: random.Random, path: Path) -> bool:
    """A line, or all lines, from a journal that says something else in its first line."""
    lines = lines_of(path)
    header = json.loads(lines[0])
    header["hash"] = "0123456789abcdef"
    path.write_bytes(json.dumps(header).encode() + b"\n")
    other = [crafted(path, record_of(line)) for line in lines[1:]]
    at = rng.randrange(len(other))
    path.write_bytes(b"".join([lines[0], *lines[1 : at + 1], *other[at:]]))
    return True


DAMAGES: list[Damage] = [
    flipped, overwritten, cut_off, without_a_part, with_a_part_twice, in_another_order, with_other_line_breaks,
    with_a_mark, with_garbage_in_between, with_absurd_numbers, with_an_absurd_record, contradicting,
    of_another_configuration,
]  # fmt: skip


@pytest.mark.parametrize("seed", seeds(65, 2600))
def test_refused_by_line_or_the_same_results(written: Callable[[str], Written], tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    names = list(USERS)
    user = written(names[seed % len(names)])
    damage = DAMAGES[seed // len(names) % len(DAMAGES)]
    shutil.copytree(user.folder, tmp_path, dirs_exist_ok=True)
    journal = tmp_path / "j.jsonl"
    must_refuse = damage(rng, journal)
    before = journal.read_bytes()
    found, problem = outcome(user.user, journal)
    if problem:
        assert TOLD.search(problem), problem
        assert "Traceback" not in problem
        assert len(problem) < 600
        assert journal.read_bytes() == before
        return
    assert not must_refuse, f"{damage.__name__} was not noticed"
    # A merge of shards that are not complete is one of fewer samples, and says so.
    assert found == user.expected or (found is None and names[seed % len(names)] == "shards")


def outcome(user: JournalUser, journal: Path) -> tuple[object, str]:
    """The results, or why they are refused."""
    try:
        return user.result(journal), ""
    except JournalError as problem:
        return None, str(problem)
