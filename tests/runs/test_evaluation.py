"""Runs that are journaled, stopped, divided and gone on with."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest

from support.runs import ROW
from support.small_runs import evaluation, recipe, small_task
from winnow.estimate.errors import JournalError
from winnow.estimate.executors.local import LocalExecutor
from winnow.estimate.journal import Journal
from winnow.runs.evaluation import HANDFUL, Evaluation
from winnow.runs.folder import RunError
from winnow.runs.groups import different, grouped
from winnow.runs.summary import summaries
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


def test_a_group_that_lacks_a_row_is_asked_again_and_its_other_rows_stay(made, whole, tmp_path):
    journal = Journal.open(tmp_path / "cells.jsonl", made.space.config())
    lost = whole.rows[1]
    for row in whole.rows:
        if row.cell != lost.cell:
            journal.append(asdict(row))
    journal.close()
    found = evaluation(made, tmp_path / "cells.jsonl")
    (item,) = found.missing()
    assert lost.example == made.groups[item.example].examples[1].name
    again = [row for row in whole.rows if (row.method, row.context) == (lost.method, lost.context)]
    found.run(LocalExecutor(lambda _: again), [item], lambda *_: None)
    assert found.missing() == []
    assert len(list(found._journal.records())) == len(found.cells)


def test_shards_have_all_cells_between_them_and_none_twice(made, tmp_path):
    parts = [evaluation(made, tmp_path / f"{shard}.jsonl", shard=shard) for shard in ((0, 2), (1, 2), (0, 1))]
    first, second, both = (set(part.missing()) for part in parts)
    assert not first & second
    assert first | second == both
    # What is announced is of the shard.
    assert sum(len(part.cells) for part in parts[:2]) == len(parts[2].cells)
    assert [len(part.groups) for part in parts] == [1, 1, 2]


def test_rows_by_other_code_or_another_table_are_refused(made, whole, tmp_path):
    path = tmp_path / "cells.jsonl"
    journal = Journal.open(path, made.space.config())
    told = r"holds results of snapkv @ 25% with other code, another table.*give another --out, or delete those lines"
    for row in map(dict, whole._journal.records()):
        journal.append({**row, "cell": "another"} if row["method"] != "full" else row)
        if row["method"] != "full":
            break
    journal.close()
    with pytest.raises(RunError, match=told):
        evaluation(made, path)
    # Whether they are in this journal or beside it; methods that are not asked for are none of this command's.
    rows = [replace(row, cell="another") for row in whole.rows if row.method != "full"]
    fresh = Journal.open(tmp_path / "cells.1-of-2.jsonl", made.space.config())
    with pytest.raises(RunError, match=told):
        Evaluation(made, fresh, elsewhere=rows)
    alone = replace(made, methods=made.methods[:1])
    assert Evaluation(alone, fresh, elsewhere=rows).done == 0


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


def repeating() -> Task:
    """A task in which two of four examples have the texts of the first."""
    task = small_task(documents=1)
    first, second = task.examples[:2]
    again = [replace(first, name=name, facts={"depth": 50}) for name in ("again", "once more")]
    return Task("small", "small", task.judging, (first, again[0], second, again[1]))


def test_examples_with_the_same_texts_are_asked_once_and_count_once(model, tokenizer, tmp_path):
    made = recipe(model, [repeating()], methods=("full", "snapkv @ 25%"))
    found = evaluation(made, tmp_path / "cells.jsonl")
    found.run(LocalExecutor(made.worker(model, tokenizer)), found.missing(), lambda *_: None)
    (one, other) = (row.example for row in found.rows if row.method == "full")
    assert (one, other) == ("0-0", "0-1")
    # The table at the end of a run is of the rows that its folder has.
    assert len(found.rows) == len(found.cells) == found.done == len(list(found._journal.records())) == 4
    assert [each.examples for each in summaries(found.rows)] == [2, 2]
    assert found.planned == {"full": {"small": 2}, "snapkv @ 25%": {"small": 2}}


def test_examples_that_differ_in_any_text_are_all_asked():
    one = Example("1", "a text.", " why?", ("because",))
    texts = {"context": "b", "question": " who?", "answers": ("it",), "choices": ("it",), "answer_prefix": " As"}
    others = [replace(one, name=name, **{name: text}) for name, text in texts.items()]
    assert different([one, *others, replace(one, name="2")]) == (one, *others)


def test_a_plan_is_of_all_shards_and_of_results_that_are_there(made, whole, tmp_path):
    part = evaluation(made, tmp_path / "a.jsonl", shard=(0, 2))
    everything = {task: len(whole.cells) // 2 for task in ("small",)}
    assert part.planned == whole.planned == {"full": everything, "snapkv @ 25%": everything}
    # Of an earlier command, which asked others.
    rows = [replace(row, cell=f"{row.cell}-", example=f"{row.example}-", content="") for row in whole.rows[:3]]
    before = Evaluation(replace(made, groups=made.groups[:1]), Journal.open(tmp_path / "b", {}), elsewhere=rows)
    asked = len(made.groups[0].examples)
    assert sum(sum(tasks.values()) for tasks in before.planned.values()) == 2 * asked + 3


@pytest.mark.parametrize("seen", [True, False])
def test_methods_side_by_side_answer_as_they_do_alone(model, tokenizer, tmp_path, seen):
    methods = ("full", "snapkv @ 25%", "adakv @ 10%", "full+kivi(4)", "snapkv+spark(0.5) @ 25%")
    made = recipe(model, [small_task(questions=2)], seen, methods)
    alone, beside = evaluation(made, tmp_path / "alone.jsonl"), evaluation(made, tmp_path / "beside.jsonl", together=3)
    for found in (alone, beside):
        found.run(LocalExecutor(found.recipe.worker(model, tokenizer)), found.missing(), lambda *_: None)
    assert beside.recipe.batches == ((0, 1, 2), (3, 4))
    assert told(beside) == told(alone)
    assert {row.together for row in beside.rows} == {3, 2}
    assert all(each.step_seconds is None for each in summaries(beside.rows))
    assert all(each.step_seconds for each in summaries(alone.rows))
    assert [(row.kept, row.held_bytes) for row in beside.rows] == [(row.kept, row.held_bytes) for row in alone.rows]


def test_methods_with_all_results_take_no_place_in_a_batch(model, tokenizer, tmp_path):
    path, task = tmp_path / "cells.jsonl", small_task()
    first = evaluation(recipe(model, [task], methods=("full", "snapkv @ 25%")), path)
    first.run(LocalExecutor(first.recipe.worker(model, tokenizer)), first.missing(), lambda *_: None)
    first._journal.close()
    later = recipe(model, [task], methods=("full", "keydiff @ 25%", "snapkv @ 25%", "adakv @ 25%"))
    second = evaluation(later, path, together=4)
    assert second.recipe.batches == ((1, 3),)
    items = second.missing()
    assert [second.results(item) for item in items] == [2 * len(group.examples) for group in later.groups]
    assert sum(map(second.work, items)) == sum(group.work for group in later.groups) / 2
    second.run(LocalExecutor(second.recipe.worker(model, tokenizer)), items, lambda *_: None)
    assert second.missing() == []
    assert second.done == len(second.cells)


def test_a_long_task_begins_with_a_handful_under_the_full_cache(model, tokenizer, tmp_path):
    task = _questions(10 * HANDFUL)
    made = recipe(model, [task], methods=("full", "snapkv @ 25%", "knorm @ 25%"))
    found = evaluation(made, tmp_path / "cells.jsonl")
    items = found.missing()
    assert items[:HANDFUL] == [(0, group) for group in range(HANDFUL)]
    assert items[HANDFUL : HANDFUL + 5] == [(1, 0), (2, 0), (1, 1), (2, 1), (1, 2)]
    assert len(set(items)) == len(items) == 3 * 10 * HANDFUL
    # Where all methods go side by side, or few examples are there, contexts are read once.
    together = evaluation(made, tmp_path / "together.jsonl", together=3).missing()
    assert together == [(0, group) for group in range(10 * HANDFUL)]
    few = recipe(model, [_questions(10 * HANDFUL - 1)], methods=("full", "snapkv @ 25%"))
    assert evaluation(few, tmp_path / "few.jsonl").missing()[:3] == [(0, 0), (1, 0), (0, 1)]


def test_tasks_of_one_context_are_spread_over_the_shards(made, tmp_path):
    groups = tuple(grouped([replace(small_task(documents=1), name=name) for name in ("one", "other")], 8))
    several = replace(made, groups=groups)
    parts = [evaluation(several, tmp_path / f"{index}.jsonl", shard=(index, 2)) for index in range(2)]
    assert [[group.task for group in part.groups] for part in parts] == [["one"], ["other"]]


def _questions(number):
    examples = [Example(str(each), f"context {each}", " why?", ("because",)) for each in range(number)]
    return Task("made", "long", Judging("exact_match", 4), tuple(examples))


@pytest.mark.parametrize("sizes", [(2, 3), (1, None)])
def test_shards_have_the_same_contexts_whatever_the_size_of_groups(made, tmp_path, sizes):
    tasks = [small_task(), replace(small_task(), name="another")]
    divided = []
    for size in sizes:
        groups = tuple(grouped(tasks, size))
        found = evaluation(replace(made, groups=groups), tmp_path / f"{size}.jsonl", shard=(0, 2))
        mine = {item.example for item in found.missing()}
        divided.append({(groups[each].task, groups[each].examples[0].context) for each in mine})
    assert divided[0] == divided[1]


def test_what_is_held_is_the_mean_of_shares_and_not_the_share_of_all_bytes():
    rows = [replace(ROW, example=str(full), held_bytes=held, full_bytes=full) for held, full in ((10, 100), (9, 10))]
    assert summaries(rows)[0].held_share == pytest.approx(0.5)
