"""Runs that are journaled, stopped, divided and gone on with."""

from __future__ import annotations

import pytest

from support.small_runs import evaluation, recipe, small_task
from winnow.estimate.errors import JournalError
from winnow.estimate.executors.local import LocalExecutor
from winnow.estimate.journal import Journal
from winnow.runs.evaluation import HANDFUL, Evaluation
from winnow.runs.folder import RunError
from winnow.runs.groups import grouped
from winnow.tasks.example import Example, Judging, Task

pytestmark = pytest.mark.usefixtures("one_thread")


class Stopped(Exception):
    pass


def told(found: Evaluation) -> list[tuple[str, str, dict[str, float], str]]:
    return [(row.cell, row.method, row.scores, row.prediction) for row in found.rows]


@pytest.fixture(scope="module")
def made(model):
    return recipe(model, [small_task()], methods=("full", "snapkv @ 25%"))


@pytest.fixture(scope="module")
def whole(made, model, tokenizer, tmp_path_factory):
    found = evaluation(made, tmp_path_factory.mktemp("whole") / "cells.jsonl")
    found.run(LocalExecutor(made.worker(model, tokenizer)), found.missing(), lambda *_: None)
    return found


def test_a_run_that_was_stopped_goes_on_where_it_was(made, whole, model, tokenizer, tmp_path):
    path, worker = tmp_path / "cells.jsonl", made.worker(model, tokenizer)
    first = evaluation(made, path)

    def stop(*_):
        raise Stopped

    with pytest.raises(Stopped):
        first.run(LocalExecutor(worker), first.missing(), stop)
    assert 0 < first.done < len(first.cells)
    first._journal.close()
    second = evaluation(made, path)
    assert second.done == first.done
    asked = []

    def noting(item):
        asked.append(item)
        return worker(item)

    second.run(LocalExecutor(noting), second.missing(), lambda *_: None)
    assert len(asked) == len(made.groups) * len(made.methods) - 1
    assert told(second) == told(whole)
    assert second.missing() == []


def test_shards_have_all_cells_between_them_and_none_twice(made, tmp_path):
    fresh = evaluation(made, tmp_path / "cells.jsonl")
    first, second, both = (set(fresh.missing(shard)) for shard in ((0, 2), (1, 2), (0, 1)))
    assert not first & second
    assert first | second == both


def test_a_task_that_the_full_cache_fails_is_told(model, tokenizer, tmp_path):
    wrong = [Example(str(n), "a text about red things.", f" question {n}", ("nowhere",)) for n in range(HANDFUL + 3)]
    made = recipe(model, [Task("small", "hopeless", Judging("contains_any", 2), tuple(wrong))], methods=("full",))
    found = evaluation(made, tmp_path / "cells.jsonl")
    executor = LocalExecutor(made.worker(model, tokenizer))
    with pytest.raises(RunError, match=r"scores 0 in the first \d+ examples of hopeless \(contains_any\).*'nowhere'"):
        found.run(executor, found.missing(), lambda *_: None)
    found.run(executor, found.missing(), lambda *_: None, allow_zero=True)
    assert found.done == len(wrong)


def test_results_that_contradict_each_other_are_refused(made, whole, tmp_path):
    path = tmp_path / "cells.jsonl"
    journal = Journal.open(path, made.space.config())
    row = dict(whole._journal.records()[0])
    journal.append(row)
    journal.append({**row, "decode_seconds": 1.0})
    journal.append({**row, "prediction": "something else"})
    journal.close()
    with pytest.raises(JournalError, match="line 4"):
        evaluation(made, path)


def test_tasks_take_turns_and_contexts_stay_together():
    one, other = small_task(documents=3), small_task(documents=1)
    groups = grouped([one, Task("small", "other", other.judging, other.examples)], most=2)
    assert [group.task for group in groups[:4]] == ["small", "other", "small", "other"]
    for group in groups:
        assert len({example.context for example in group.examples}) == 1
        assert 1 <= len(group.examples) <= 2
    assert sum(len(group.examples) for group in groups) == len(one.examples) + len(other.examples)
