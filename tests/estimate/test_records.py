"""Records: what no work of the plan could have written is refused by its line."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from support.journals import crafted, lines_of, record_of
from winnow.estimate.errors import JournalError
from winnow.estimate.journal import Journal
from winnow.estimate.journal_file import LONGEST
from winnow.estimate.records import (
    AnswerRecord,
    BaselineRecord,
    CoalitionRecord,
    NeedleRecord,
    RecordKind,
    answer_records,
    coalition_records,
    needle_records,
)
from winnow.typed import TypedError

CONFIG = {"seed": 1}
KINDS: dict[str, tuple[RecordKind[Any], list[Any]]] = {
    "coalitions": (
        coalition_records(batches=8, coalitions=4, examples=3).batches,
        [CoalitionRecord(batch, example, [0.0, 1.0, 0.5, 1]) for batch in range(2) for example in range(3)],
    ),
    "baselines": (
        coalition_records(batches=8, coalitions=4, examples=3).baselines,
        [BaselineRecord(example, 1.0, 0.25) for example in range(3)],
    ),
    "needles": (
        needle_records("r2", 2, (0, 100), (0.0, 0.5), steps=50, shape=(1, 2)),
        [NeedleRecord("r2", 1, 100, depth, 90, "is fig", [[0.25, 3.0]]) for depth in (0.0, 0.5)]
        + [NeedleRecord("r2", 0, 0, 0.5, 9, "", "rejected")],
    ),
    "answers": (
        answer_records({"validation": [2, 1], "test": [3]}),
        [
            AnswerRecord("validation", 1, {"2 @ 64": [True], "4 @ 64": [False]}),
            AnswerRecord("validation", 1, {"8 @ 64": [True]}),
            AnswerRecord("test", 0, {"2 @ 64": [True, False, True]}),
        ],
    ),
}

FAULTS: list[tuple[str, dict[str, Any], str]] = [
    ("baselines", {"all_heads": 1.5}, "all_heads must be a number from 0 to 1, not 1.5"),
    ("baselines", {"example": 3}, "example must be"),
    ("coalitions", {"batch": 8}, "batch must be a whole number from 0 to 7, not 8"),
    ("coalitions", {"batch": -1}, "batch must be"),
    ("coalitions", {"batch": True}, "batch must be a whole number from 0 to 7, not true"),
    ("coalitions", {"batch": 1.0}, "batch must be"),
    ("coalitions", {"batch": "1"}, 'batch must be a whole number from 0 to 7, not "1"'),
    ("coalitions", {"batch": 10**4000}, "batch must be a whole number from 0 to 7, not 10000"),
    ("coalitions", {"example": 3}, "example must be a whole number from 0 to 2, not 3"),
    ("coalitions", {"u": [0.0, 1.0, 0.5]}, "u must be a list of 4 values"),
    ("coalitions", {"u": {}}, "u must be a list of 4 values, not {}"),
    ("coalitions", {"u": [0.0, 1.0, 1e308, 0.0]}, r"u\[2\] must be a number from 0 to 1, not 1e\+308"),
    ("coalitions", {"u": [0.0, 1.0, 0.5, -1e-9]}, r"u\[3\] must be"),
    ("coalitions", {"u": [0.0, 1.0, None, 0.0]}, r"u\[2\] must be a number from 0 to 1, not null"),
    ("coalitions", {"u": [0.0, 1.0, [0.5], 0.0]}, r"u\[2\] must be"),
    ("coalitions", {"u": [0.0, 1.0, 0.5, 10**400]}, r"u\[3\] must be"),
    ("coalitions", {"more": 1}, 'no "more" belongs there, only batch, example, u'),
    ("needles", {"kind": "er"}, 'kind must be "r2", not "er"'),
    ("needles", {"example": 2}, "example must be"),
    ("needles", {"length": 50}, "length must be one of 0, 100, not 50"),
    ("needles", {"depth": 0.25}, "depth must be one of 0.0, 0.5, not 0.25"),
    ("needles", {"depth": False}, "depth must be"),
    ("needles", {"prompt_tokens": 0}, "prompt_tokens must be"),
    ("needles", {"answer": None}, "answer must be a text"),
    ("needles", {"scores": "accepted"}, "scores must be a list of 1 values"),
    ("needles", {"scores": [[0.25]]}, r"scores\[0\] must be a list of 2 values"),
    ("needles", {"scores": [[0.25, 51]]}, r"scores\[0\]\[1\] must be a number from 0 to 50.05, not 51"),
    ("answers", {"split": "train"}, 'split must be one of "validation", "test", not "train"'),
    ("answers", {"document": 2}, "document must be a whole number from 0 to 1, not 2"),
    ("answers", {"right": {}}, "right must be an object with names"),
    ("answers", {"right": {"2 @ 64": [True, False]}}, "right has 2 answers for 2 @ 64, not 1"),
    ("answers", {"right": {"2 @ 64": [1]}}, r'right\["2 @ 64"\]\[0\] must be true or false, not 1'),
    ("answers", {"right": [True]}, "right must be an object"),
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.jsonl"


def written(path: Path, name: str) -> RecordKind[Any]:
    kind, records = KINDS[name]
    journal = Journal.open(path, CONFIG)
    for record in records:
        journal.append(asdict(record))
    journal.close()
    return kind


@pytest.mark.parametrize("name", KINDS)
def test_what_was_written_is_read_again(path: Path, name: str) -> None:
    kind = written(path, name)
    assert Journal.open(path, CONFIG).read(kind) == KINDS[name][1]


@pytest.mark.parametrize(("name", "changes", "told"), FAULTS, ids=lambda value: None if isinstance(value, dict) else "")
def test_what_is_no_work_of_the_plan_is_refused_by_line(
    path: Path, name: str, changes: dict[str, Any], told: str
) -> None:
    kind = written(path, name)
    lines = lines_of(path)
    lines[1] = crafted(path, {**record_of(lines[1]), **changes})
    path.write_bytes(b"".join(lines))
    with pytest.raises(JournalError, match=rf"a\.jsonl, line 2: {told}.*Delete that line and its work is done again"):
        Journal.open(path, CONFIG).read(kind)


@pytest.mark.parametrize("name", KINDS)
def test_every_field_is_needed(path: Path, name: str) -> None:
    kind = written(path, name)
    lines = lines_of(path)
    for field in kind.types:
        record = record_of(lines[2])
        del record[field]
        path.write_bytes(b"".join([*lines[:2], crafted(path, record), *lines[3:]]))
        with pytest.raises(JournalError, match=f'line 3: there is no "{field}"'):
            Journal.open(path, CONFIG).read(kind)


@pytest.mark.parametrize("name", KINDS)
def test_equal_records_of_the_same_work_count_once_and_others_are_refused(path: Path, name: str) -> None:
    kind = written(path, name)
    lines = lines_of(path)
    path.write_bytes(b"".join([*lines, lines[1]]))
    assert Journal.open(path, CONFIG).read(kind) == [*KINDS[name][1], KINDS[name][1][0]]
    other = {
        "coalitions": {"u": [0.0, 1.0, 0.5, 0.0]},
        "baselines": {"no_heads": 1.0},
        "needles": {"scores": "rejected"},
        "answers": {"right": {"16 @ 64": [True], "4 @ 64": [True]}},
    }[name]
    path.write_bytes(b"".join([*lines, crafted(path, {**record_of(lines[1]), **other})]))
    with pytest.raises(JournalError, match=rf"line {len(lines) + 1}: the result of .* differs from that in line 2"):
        Journal.open(path, CONFIG).read(kind)


@pytest.mark.parametrize(
    ("written_as", "told"),
    [
        (b'{"batch":0,"example":0,"u":[NaN,0,0,0]}', "NaN, which is no JSON"),
        (b'{"batch":0,"example":0,"u":[-Infinity,0,0,0]}', "-Infinity, which is no JSON"),
        (b'{"batch":0,"batch":1,"example":0,"u":[0,0,0,0]}', "the key 'batch' twice"),
        (b'{"batch":0,"example":0,"u":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested deeper than 100 levels"),
        (b'{"batch":' + b"9" * 5000 + b',"example":0,"u":[0,0,0,0]}', "a number of too many digits"),
        (b'{"batch":0,"example":0,"u":[1e999,0,0,0],"hash":"0"}', "the number 1e999, which is too large"),
        (b'{"batch":0,"example":0,"u":[0,0,0,0]}', 'there is no "hash"'),
        (b"[]", "not a JSON object, but a list"),
        (b"\0\0\0", "not JSON"),
        (b"", "not JSON"),
        (b'\xff{"batch":0}', "not UTF-8 text"),
    ],
    ids=lambda value: value[:12] if isinstance(value, str) else "",
)
def test_lines_that_are_no_records_are_refused(path: Path, written_as: bytes, told: str) -> None:
    written(path, "coalitions")
    lines = lines_of(path)
    path.write_bytes(b"".join([*lines[:3], written_as, b"\n", *lines[3:]]))
    for read in (lambda: Journal.open(path, CONFIG), lambda: Journal.existing(path)):
        with pytest.raises(JournalError, match=f"a.jsonl, line 4: {told}"):
            read()


def test_a_line_without_end_is_not_read_into_memory(path: Path) -> None:
    written(path, "coalitions")
    with path.open("ab") as file:
        file.write(b"[")
        file.truncate(path.stat().st_size + 100 * 2**20)
    with pytest.raises(JournalError, match=r"a\.jsonl, line 8: this line is too long"):
        Journal.open(path, CONFIG)
    journal = Journal.open(path.with_name("b.jsonl"), CONFIG)
    with pytest.raises(JournalError, match="is too long for a journal"):
        journal.append({"x": "x" * LONGEST})


class _Unchanged(Exception):
    """White space became other white space."""


def test_every_changed_bit_is_noticed(path: Path) -> None:
    kind = written(path, "coalitions")
    lines = lines_of(path)
    # The last line that is not finished is dropped, so one before it is changed.
    for place, byte in enumerate(lines[1]):
        for bit in range(8):
            changed = bytes([*lines[1][:place], byte ^ 1 << bit, *lines[1][place + 1 :]])
            path.write_bytes(b"".join([lines[0], changed, *lines[2:]]))
            with suppress(_Unchanged), pytest.raises(JournalError, match=r"a\.jsonl, line [23]: "):
                assert Journal.existing(path).read(kind) == KINDS["coalitions"][1]
                raise _Unchanged


def test_a_line_of_another_configuration_is_told(path: Path) -> None:
    written(path, "coalitions")
    other = path.with_name("b.jsonl")
    Journal.open(other, {"seed": 2}).append(asdict(KINDS["coalitions"][1][0]))
    path.write_bytes(path.read_bytes() + lines_of(other)[1] + lines_of(path)[1])
    with pytest.raises(JournalError, match=r"line 8: .*comes from the journal of another configuration"):
        Journal.open(path, CONFIG)


def test_line_breaks_of_windows_change_nothing(path: Path) -> None:
    kind = written(path, "coalitions")
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    journal = Journal.open(path, CONFIG)
    journal.append(asdict(CoalitionRecord(7, 0, [0.0, 0.0, 0.0, 0.0])))
    assert len(Journal.open(path, CONFIG).read(kind)) == 7


def test_a_byte_order_mark_is_told(path: Path) -> None:
    written(path, "coalitions")
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    with pytest.raises(JournalError, match="begins with a byte order mark"):
        Journal.open(path, CONFIG)


def test_line_breaks_of_old_macs_are_no_torn_first_line(path: Path) -> None:
    written(path, "coalitions")
    before = path.read_bytes().replace(b"\n", b"\r")
    path.write_bytes(before)
    with pytest.raises(JournalError, match="line 1"):
        Journal.open(path, CONFIG)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "header",
    [
        {"winnow_journal": 3, "hash": "0", "config": {}},
        {"winnow_journal": 2, "hash": "0", "config": {"seed": 1}},
        {"winnow_journal": 2, "hash": "0", "config": [1]},
        {"winnow_journal": 2, "config": {"seed": 1}},
        {"winnow_journal": 2, "hash": "0", "config": {"seed": 1}, "more": 1},
    ],
)
def test_a_first_line_that_says_something_else_is_refused(path: Path, header: dict[str, Any]) -> None:
    path.write_text(json.dumps(header, separators=(",", ":")) + "\n")
    for read in (lambda: Journal.open(path, CONFIG), lambda: Journal.existing(path)):
        with pytest.raises(JournalError, match=r"a\.jsonl, line 1: .*Delete the file to start over"):
            read()


def test_numbers_that_are_not_finite_are_not_written(path: Path) -> None:
    journal = Journal.open(path, CONFIG)
    before = path.read_bytes()
    with pytest.raises(JournalError, match="a result that could not be read again, NaN"):
        journal.append({"scores": [[float("nan")]]})
    assert path.read_bytes() == before
    assert journal.records() == ()


def test_journals_without_hashes_go_on_without(path: Path) -> None:
    """Those of an earlier version."""
    kind = written(path, "coalitions")
    header, *lines = map(json.loads, lines_of(path))
    for line in lines:
        del line["hash"]
    old = [{**header, "winnow_journal": 1}, *lines]
    path.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in old))
    journal = Journal.open(path, CONFIG)
    journal.append(asdict(CoalitionRecord(7, 0, [0.0, 0.0, 0.0, 0.0])))
    assert "hash" not in json.loads(lines_of(path)[-1])
    assert len(Journal.open(path, CONFIG).read(kind)) == 7


def test_a_document_behind_the_last_one_is_none() -> None:
    kind = answer_records({"validation": [2]})
    record = {"split": "validation", "document": 0, "right": {"1 @ 8": [True, False]}}
    assert kind.read(record).document == 0
    with pytest.raises(TypedError, match="from 0 to 0, not 1"):
        kind.read({**record, "document": 1})
