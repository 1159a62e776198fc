"""LongBench's files in the forms in which people have them, and what is wrong with others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.benchmark_files import longbench_row, write_lines, write_parquet, write_zip
from winnow.tasks.benchmark import BenchmarkError, Request
from winnow.tasks.longbench.benchmarks import LONGBENCH, LONGBENCH_E, LONGBENCH_KVPRESS

ROWS = [longbench_row(number) for number in range(5)]
CLASSES = [longbench_row(number, all_classes=["A", "B"], answers=["A"]) for number in range(2)]


def request(data: Path | None, **changed: Any) -> Request:
    return Request(count_tokens=len, data=data, **changed)


def folder(tmp_path: Path) -> Path:
    write_lines(tmp_path / "lb" / "qasper.jsonl", ROWS)
    write_lines(tmp_path / "lb" / "trec.jsonl", CLASSES)
    return tmp_path / "lb"


def archive(tmp_path: Path) -> Path:
    return write_zip(
        tmp_path / "data.zip",
        {"data/qasper.jsonl": ROWS, "data/trec.jsonl": CLASSES, "__MACOSX/data/._qasper.jsonl": []},
    )


def folder_with_archive(tmp_path: Path) -> Path:
    (tmp_path / "holds").mkdir()
    archive(tmp_path / "holds")
    return tmp_path / "holds"


def parquet_files(tmp_path: Path) -> Path:
    write_parquet(tmp_path / "hub" / "qasper" / "test-00000-of-00002.parquet", ROWS[:3])
    write_parquet(tmp_path / "hub" / "qasper" / "test-00001-of-00002.parquet", ROWS[3:])
    write_parquet(tmp_path / "hub" / "trec-00000-of-00001.parquet", CLASSES)
    return tmp_path / "hub"


@pytest.mark.parametrize("written", [folder, archive, folder_with_archive, parquet_files])
def test_all_forms_of_the_data_give_the_same_tasks(tmp_path: Path, written: Callable[[Path], Path]) -> None:
    tasks = LONGBENCH.load(request(written(tmp_path)))
    assert [(task.name, len(task.examples)) for task in tasks] == [("qasper", 5), ("trec", 2)]
    assert [example.name for example in tasks[0].examples] == [f"id{number}" for number in range(5)]
    assert tasks[1].examples[0].choices == ("A", "B")
    assert tasks[1].judging == ("classification", 64, False, True)


def test_single_files_and_samples(tmp_path: Path) -> None:
    (task,) = LONGBENCH.load(request(folder(tmp_path) / "qasper.jsonl", examples=2, seed=1))
    assert len(task.examples) == 2
    (again,) = LONGBENCH.load(request(tmp_path / "lb", tasks=("qasper",), examples=2, seed=1))
    assert again == task


def test_longbench_e_has_files_of_its_own(tmp_path: Path) -> None:
    write_lines(tmp_path / "qasper_e.jsonl", ROWS)
    write_lines(tmp_path / "qasper.jsonl", ROWS[:1])
    (task,) = LONGBENCH_E.load(request(tmp_path))
    assert (task.benchmark, task.name, len(task.examples)) == ("longbench-e", "qasper_e", 5)
    assert {example.facts["words_range"] for example in task.examples} == {"0-4k", "4-8k", "8k+"}
    (task,) = LONGBENCH.load(request(tmp_path))
    assert len(task.examples) == 1
    assert LONGBENCH_E.groups["code"] == ("lcc_e", "repobench-p_e")
    assert "QA, six tasks" not in LONGBENCH_E.groups


def test_kvpress_form_is_a_benchmark(tmp_path: Path) -> None:
    (task,) = LONGBENCH_KVPRESS.load(request(folder(tmp_path), tasks=("qasper",)))
    assert task.judging.max_new_tokens == 148
    assert task.examples[0].answer_prefix == "Answer:"


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "missing": ({"context": ...}, r'qasper\.jsonl, line 2: there is no "context"'),
    "type": ({"context": 3}, r"qasper\.jsonl, line 2: context must be a text, not 3"),
    "answers": ({"answers": "Anna"}, r'line 2: answers must be a list, not "Anna"'),
    "answer": ({"answers": ["Anna", 1]}, r"line 2: answers\[1\] must be a text, not 1"),
    "none": ({"answers": []}, r"line 2: answers must hold a right answer"),
    "length": ({"length": "long"}, r'line 2: length must be a whole number, not "long"'),
    "classes": ({"all_classes": "A"}, r'line 2: all_classes must be a list, not "A"'),
    "repeated": ({"_id": "id0"}, r"line 2: it has the same _id as .*qasper\.jsonl, line 1: id0"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_field_is_told_with_file_and_line(tmp_path: Path, name: str) -> None:
    changed, told = WRONG[name]
    wrong = {key: value for key, value in longbench_row(1, **changed).items() if value is not ...}
    write_lines(tmp_path / "qasper.jsonl", [ROWS[0], wrong])
    with pytest.raises(BenchmarkError, match=told):
        LONGBENCH.load(request(tmp_path))


def test_classes_are_needed_where_they_judge(tmp_path: Path) -> None:
    write_lines(tmp_path / "trec.jsonl", ROWS)
    with pytest.raises(BenchmarkError, match=r"trec\.jsonl, line 1: all_classes must name the classes of trec"):
        LONGBENCH.load(request(tmp_path))


def test_missing_data_is_told_with_what_belongs_there(tmp_path: Path) -> None:
    with pytest.raises(BenchmarkError, match=r"longbench needs its texts: give --data with .*data\.zip.*--data hub"):
        LONGBENCH.load(request(None))
    with pytest.raises(BenchmarkError, match=r"There is no .*nowhere: give --data"):
        LONGBENCH.load(request(tmp_path / "nowhere"))
    with pytest.raises(BenchmarkError, match=r"has no \.jsonl"):
        LONGBENCH.load(request(tmp_path))
    with pytest.raises(BenchmarkError, match=r"has no file of 2wikimqa, musique"):
        LONGBENCH.load(request(folder(tmp_path), tasks=("qasper", "musique", "2wikimqa")))
    with pytest.raises(BenchmarkError, match="has no file of a task of longbench-e"):
        LONGBENCH_E.load(request(tmp_path / "lb"))
    with pytest.raises(BenchmarkError, match="longbench has no task 'qaspr': did you mean 'qasper'"):
        LONGBENCH.load(request(tmp_path / "lb", tasks=("qaspr",)))
