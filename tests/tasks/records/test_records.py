"""Files of benchmarks: formats, places in error texts, damage, and the hub."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.benchmark_files import write_lines, write_parquet, write_zip
from winnow.tasks.benchmark import BenchmarkError, Request
from winnow.tasks.records import OnHub, open_folder, records

HUB = OnHub("some/data", ("*.jsonl",))


def opened(path: Path) -> list[dict[str, object]]:
    folder = open_folder(Request(len, data=path), "made", "its files")
    return [record.fields for file in folder.all_files() for record in records(folder, file)]


def test_json_may_be_lines_a_list_or_one_object(tmp_path: Path) -> None:
    rows = [{"a": 1}, {"a": 2}]
    assert opened(write_lines(tmp_path / "a.jsonl", rows)) == rows
    (tmp_path / "b.json").write_text(json.dumps(rows, indent=2))
    assert opened(tmp_path / "b.json") == rows
    (tmp_path / "c.json").write_text(json.dumps(rows[0], indent=2))
    assert opened(tmp_path / "c.json") == rows[:1]
    assert opened(write_parquet(tmp_path / "d.parquet", rows)) == rows


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b'{"a": 1}\n{"a": \n', r"x\.jsonl: line 2: not JSON"),
        (b'{"a": 1}\n[1]\n', r"x\.jsonl: line 2: not a JSON object, but a list"),
        (b"[1, 2]", r"x\.jsonl: line 1: not a JSON object, but a list"),
        (b"\xff\xfe", r"x\.jsonl is not UTF-8"),
        (b"\n \n", r"x\.jsonl is empty"),
        (b'{"a": 1, "a": 2}', "the key 'a' twice"),
    ],
)
def test_damaged_json_is_told_with_its_place(tmp_path: Path, content: bytes, told: str) -> None:
    (tmp_path / "x.jsonl").write_bytes(content)
    with pytest.raises(BenchmarkError, match=told):
        opened(tmp_path / "x.jsonl")


def test_damaged_archives_and_parquet_files_are_told(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "a.zip", {"x.jsonl": [{"a": "b" * 1000}] * 50})
    whole = bytearray(path.read_bytes())
    whole[60:90] = bytes(30)
    path.write_bytes(whole)
    with pytest.raises(BenchmarkError, match=r"a\.zip, x\.jsonl: cannot be read"):
        opened(path)
    newer = bytearray(write_zip(tmp_path / "c.zip", {"x.jsonl": [{"a": 1}]}).read_bytes())
    newer[newer.index(b"PK\x01\x02") + 6] = 190
    (tmp_path / "c.zip").write_bytes(newer)
    with pytest.raises(BenchmarkError, match=r"c\.zip cannot be read: zip file version 19"):
        opened(tmp_path / "c.zip")
    (tmp_path / "b.parquet").write_bytes(b"PAR1 nothing PAR1")
    with pytest.raises(BenchmarkError, match=r"b\.parquet is not a readable Parquet file"):
        opened(tmp_path / "b.parquet")


@pytest.mark.parametrize("suffix", ["jsonl", "parquet", "zip"])
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_whatever_is_damaged_is_told(tmp_path: Path, suffix: str, data: st.DataObject) -> None:
    rows = [{"a": "text", "b": [1, 2]}, {"a": "other", "b": []}]
    whole = tmp_path / f"whole.{suffix}"
    write = {
        "jsonl": write_lines,
        "parquet": write_parquet,
        "zip": lambda path, rows: write_zip(path, {"x.jsonl": rows}),
    }
    content = bytearray(write[suffix](whole, rows).read_bytes())
    for place in data.draw(st.lists(st.integers(0, len(content) - 1), min_size=1, max_size=8)):
        content[place] = data.draw(st.integers(0, 255))
    damaged = tmp_path / f"damaged.{suffix}"
    damaged.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    with suppress(BenchmarkError):
        assert all(isinstance(each, dict) for each in opened(damaged))


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("{}")
    with pytest.raises(BenchmarkError, match=r"a\.txt has no \.jsonl, \.json, \.parquet files: give --data"):
        opened(tmp_path / "a.txt")


def test_a_name_in_two_folders_is_refused(tmp_path: Path) -> None:
    for place in ("one", "two"):
        write_lines(tmp_path / place / "x.jsonl", [{"a": 1}])
    folder = open_folder(Request(len, data=tmp_path), "made", "its files")
    with pytest.raises(BenchmarkError, match=r"has x more than once: one/x\.jsonl, two/x\.jsonl"):
        folder.of_task("x")
    assert folder.of_task("y") == []


def test_names_of_tasks_are_whole_names(tmp_path: Path) -> None:
    for name in ("qasper_e.jsonl", "qasper-2.jsonl", "my-qasper.jsonl"):
        write_lines(tmp_path / name, [{"a": 1}])
    assert open_folder(Request(len, data=tmp_path), "made", "its files").of_task("qasper") == []


def test_the_split_for_tests_is_taken_from_the_hub_s_layout(tmp_path: Path) -> None:
    for split in ("train", "test"):
        write_parquet(tmp_path / "main" / f"{split}-00000-of-00001.parquet", [{"a": split}])
    folder = open_folder(Request(len, data=tmp_path), "made", "its files")
    assert folder.of_task("main") == ["main/test-00000-of-00001.parquet"]


def test_without_a_net_the_hub_is_told_with_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import huggingface_hub

    def unreachable(*given: object, **named: object) -> str:
        raise ConnectionError("no route\nmore")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", unreachable)
    with pytest.raises(
        BenchmarkError, match=r"Cannot download some/data for made from the hub \(no route\)\. .*--data with"
    ):
        open_folder(Request(len, data=Path("hub")), "made", "its files", HUB)


def test_the_hub_s_folder_is_read_like_any_other(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import huggingface_hub

    asked: list[object] = []

    def fetched(repository: str, repo_type: str, allow_patterns: list[str]) -> str:
        asked.extend([repository, repo_type, *allow_patterns])
        return str(write_lines(tmp_path / "cache" / "x.jsonl", [{"a": 1}]).parent)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetched)
    folder = open_folder(Request(len, data=Path("hub")), "made", "its files", HUB)
    assert folder.of_task("x") == ["x.jsonl"]
    assert asked == ["some/data", "dataset", "*.jsonl"]


def test_without_pyarrow_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import sys

    path = write_parquet(tmp_path / "a.parquet", [{"a": 1}])
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(BenchmarkError, match=r"winnow-kv\[eval\]"):
        opened(path)


@pytest.mark.parametrize(("first", "missing"), [(0, 2), (0, 1), (0, 0), (1, 1), (1, 2)])
def test_a_part_of_a_file_that_is_missing_is_named(tmp_path, first, missing):
    """Some count parts from 0, others from 1."""
    for number in range(first, first + 3):
        (tmp_path / f"a-{number:05}-of-00003.jsonl").write_text('{"a": 1}')
    request = Request(len, data=tmp_path)
    assert len(open_folder(request, "b", "files").of_task("a")) == 3
    (tmp_path / f"a-{missing:05}-of-00003.jsonl").unlink()
    folder = open_folder(request, "b", "files")
    for read in (lambda: folder.of_task("a"), folder.all_files):
        with pytest.raises(BenchmarkError, match=f"lacks a-{missing:05}-of-00003: fetch all parts"):
            read()


def test_folders_that_cannot_be_looked_into_are_told(tmp_path, monkeypatch):
    (tmp_path / "a.jsonl").write_text('{"a": 1}')
    (tmp_path / "closed").mkdir()
    real = os.scandir

    def refused(path):
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", refused)
    with pytest.raises(BenchmarkError, match=r"Cannot read .*closed: Permission denied"):
        open_folder(Request(len, data=tmp_path), "b", "files")


def test_the_split_of_a_folder_is_told_by_what_is_in_it(tmp_path: Path) -> None:
    """Folders around it may be called after tests, too."""
    folder = tmp_path / "latest"
    for split in ("train", "test"):
        write_lines(folder / "test_data" / "qasper" / f"{split}.jsonl", [{"a": split}])
    found = open_folder(Request(len, data=folder), "made", "its files").of_task("qasper")
    assert [Path(each).name for each in found] == ["test.jsonl"]
