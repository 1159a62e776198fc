"""Rows of a run, against the same prompts read, compressed and decoded in the plainest way."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from statistics import fmean

import pytest
import torch

import winnow
from support.small_runs import METHODS, recipe, small_task
from winnow.estimate.executors.base import Item
from winnow.evaluate.example_prompts import context_tokens, example_tokens
from winnow.runs import reading as module
from winnow.runs.environment import environment
from winnow.runs.reading import Terms, read_group
from winnow.runs.worker import RunRecipe, prompt_rules
from winnow.tasks.example import Example, Judging, Task
from winnow.tasks.protocols import protocol

pytestmark = pytest.mark.usefixtures("one_thread")


def all_rows(made: RunRecipe, model, tokenizer):
    worker = made.worker(model, tokenizer)
    return [
        row
        for group in range(len(made.groups))
        for number in range(len(made.methods))
        for row in worker(Item(number, group))
    ]


def generated(model, tokenizer, ids, cache, most) -> str:
    out = model.generate(ids, past_key_values=cache, max_new_tokens=most, do_sample=False)
    return tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True).strip()


def test_answers_to_questions_that_are_seen_are_those_of_generate(model, tokenizer):
    made = recipe(model, [small_task()])
    rows = all_rows(made, model, tokenizer)
    examples = {each.name: each for group in made.groups for each in group.examples}
    assert len(rows) == len(examples) * len(METHODS)
    for row in rows:
        ids = example_tokens(tokenizer, examples[row.example], chat_template=True)
        cache = winnow.CompressedCache(model, winnow.method(row.method))
        assert row.prediction == generated(model, tokenizer, ids, cache, 12), row
        assert row.prompt_tokens == ids.shape[1]
        assert row.scores == {"contains_any": float(row.answers[0] in row.prediction)}
    assert all(len(row.kept) == 4 and fmean(map(fmean, row.kept)) == row.slots for row in rows)
    assert all(row.environment == environment(model.device) for row in rows)
    held = {row.method: row.held_bytes for row in rows}
    assert held["snapkv @ 25%"] < held["keydiff @ 50%"] < held["full"]


def test_answers_to_questions_that_are_not_seen_are_those_of_a_context(model, tokenizer):
    """However many of them go side by side: one, some of a document's, or all."""
    made = recipe(model, [small_task()], seen=False)
    workers = {batch: replace(made, batch=batch).worker(model, tokenizer) for batch in (1, 3, 8)}
    for place, group in enumerate(made.groups):
        ids = [example_tokens(tokenizer, each, chat_template=True) for each in group.examples]
        length = context_tokens(tokenizer, group.examples[0], ids, chat_template=True)
        assert "question" not in tokenizer.decode(ids[0][0, :length])
        for number, method in enumerate(made.methods):
            context = winnow.compress(model, ids[0][:, :length], method)
            expected = [generated(model, tokenizer, tokens, context.cache(), 12) for tokens in ids]
            for batch, worker in workers.items():
                assert [row.prediction for row in worker(Item(number, place))] == expected, (batch, method)


@pytest.mark.parametrize("seen", [True, False])
def test_continuations_are_as_likely_as_a_plain_forward_pass_says(model, tokenizer, seen):
    text = small_task().examples[0].context
    example = Example("1", text[:600], "", (text[600:760],))
    made = recipe(model, [Task("small", "text", Judging("fidelity", 40), (example,))], seen)
    rows = {row.method: row.scores for row in all_rows(made, model, tokenizer)}
    ids = example_tokens(tokenizer, example, chat_template=False)
    going_on = tokenizer(example.answers[0], add_special_tokens=False, return_tensors="pt").input_ids
    with torch.no_grad():
        logits = model(torch.cat([ids, going_on], 1)).logits[0, ids.shape[1] - 1 : -1].double().log_softmax(-1)
    picked = logits.gather(1, going_on[0][:, None])[1:]
    assert rows["full"]["nll"] == pytest.approx(-float(picked.mean()), rel=1e-4)
    assert rows["full"]["kl"] == pytest.approx(0, abs=1e-6)
    assert rows["full"]["agreement"] == 1
    assert 0 < rows["full+bits"]["kl"] < rows["snapkv @ 25%"]["kl"]


def test_the_likeliest_choice_is_that_of_plain_forward_passes(model, tokenizer):
    """For questions that are seen, and for those that are not."""
    task = small_task()
    choices = tuple(dict.fromkeys(f" {each.answers[0]}" for each in task.examples))
    asked = [replace(each, answers=(f" {each.answers[0]}",), choices=choices) for each in task.examples]
    best = {each.name: likeliest(model, tokenizer, each) for each in asked}
    for seen in (True, False):
        methods = ("full", "snapkv @ 50%")
        made = recipe(model, [Task("small", "choice", Judging("choice", 1), tuple(asked))], seen, methods)
        rows = [row for row in all_rows(made, model, tokenizer) if row.method == "full"]
        assert {row.example: row.prediction for row in rows} == best
        assert all(row.scores == {"choice": float(row.prediction == row.answers[0])} for row in rows)
        assert {row.scores["choice"] for row in rows} == {0.0, 1.0} or all(row.scores["choice"] for row in rows)


def likeliest(model, tokenizer, example: Example) -> str:
    """The choice that plain forward passes find likeliest."""
    prompt = example_tokens(tokenizer, example, chat_template=False)
    likelihoods = []
    for choice in example.choices:
        more = tokenizer(choice, add_special_tokens=False, return_tensors="pt").input_ids
        with torch.no_grad():
            logits = model(torch.cat([prompt, more], 1)).logits[0, prompt.shape[1] - 1 : -1].log_softmax(-1)
        likelihoods.append(float(logits.gather(1, more[0][:, None]).sum()))
    return example.choices[likelihoods.index(max(likelihoods))]


@pytest.mark.parametrize("seen", [True, False])
def test_all_but_the_full_cache_are_folded(model, tokenizer, seen):
    methods = [winnow.method(name) for name in METHODS]
    read = read_group(model, tokenizer, small_task().examples[:1], methods, True, Terms(seen, fold_every=8))
    folded = [start.cache.compression.fold_every for method in methods for _, start in read.starts(method)]
    assert folded == [None, 8, 8, 8]


def test_reading_a_question_takes_time_too(model, tokenizer, monkeypatch):
    read = read_group(model, tokenizer, small_task().examples[:1], [winnow.method("full")], True, Terms(False))
    ticks = count(step=1000.0)
    monkeypatch.setattr(module, "clock", lambda model: next(ticks))
    ((costs, _),) = read.starts(winnow.method("full"))
    assert 1000 < costs.prefill_seconds < 2000


def test_the_full_cache_goes_on_once_for_all_methods(model, tokenizer):
    read = read_group(model, tokenizer, small_task().examples[:1], [winnow.method("full")], True, Terms(True))
    found = read.full_log_probabilities([torch.tensor([5, 6])])
    assert read.full_log_probabilities([torch.tensor([5, 6])]) is found


def test_of_a_long_question_rows_tell_the_end(model, tokenizer):
    long = " ".join(f"word{number}" for number in range(200))
    task = Task("small", "long", Judging("exact_match", 1), (Example("1", "A text.", f"{long} Who?\n", ("it",)),))
    (row,) = all_rows(recipe(model, [task], methods=("full",)), model, tokenizer)
    assert row.question == f"{long} Who?"[-1000:]


def test_prompts_leave_room_for_their_answers(model):
    made = recipe(model, [small_task()])
    assert prompt_rules(made, made.groups[0], model).room == model.config.max_position_embeddings - 12


def test_contexts_that_lose_their_middle_are_read_apart(model, tokenizer):
    task = small_task(documents=1)
    made = recipe(model, [task])
    short = replace(made, space=replace(made.space, limit=120))
    rows = all_rows(short, model, tokenizer)
    assert all(row.truncated and row.prompt_tokens <= 120 for row in rows)
    assert not any(row.truncated for row in all_rows(made, model, tokenizer))


def first_cell(space, group, method):
    return space.cells(group, [method])[0][0]


def test_cells_differ_by_everything_that_a_result_depends_on(model):
    made = recipe(model, [small_task()])
    group, space, (first, other, *_) = made.groups[0], made.space, made.methods
    example = group.examples[0]
    cells = [
        first_cell(space, group, first),
        first_cell(space, group, other),
        first_cell(space, replace(group, examples=(replace(example, question="?"),)), first),
        first_cell(space, replace(group, judging=Judging("contains_all", 12)), first),
        first_cell(replace(space, protocol=replace(space.protocol, chat_template=False)), group, first),
        first_cell(replace(space, model="another"), group, first),
        first_cell(replace(space, fold_every=8), group, first),
    ]
    assert len(set(cells)) == len(cells)
    renamed = replace(space, protocol=replace(space.protocol, summary="in other words"))
    assert first_cell(renamed, group, first) == cells[0]
    assert space.cells(group, made.methods)[0][0] == cells[0]


def test_a_limit_that_goes_by_the_models_name_counts_and_one_of_the_protocol_counts_once(model):
    made = recipe(model, [small_task()])
    group, method = made.groups[0], made.methods[0]
    named = replace(made.space, protocol=protocol("longbench-headkv"), limit=7950)
    assert first_cell(named, group, method) != first_cell(replace(named, limit=31_500), group, method)
    assert first_cell(made.space, group, method) == first_cell(replace(made.space, limit=100), group, method)


def test_scores_in_files_count_by_what_is_in_them(tmp_path, model):
    made = recipe(model, [small_task()])
    cells = []
    for value in (1.0, 2.0):
        table = torch.ones(4, 2, dtype=torch.float64)
        table[0, 0] = value
        path = winnow.HeadScores(table, "headkv-r").save(tmp_path / "scores.safetensors")
        chosen = winnow.method(f"headkv-r(scores={path})", "25%")
        cells.append(first_cell(made.space, made.groups[0], chosen))
    assert cells[0] != cells[1]


def test_answers_that_fold_are_those_of_a_cache_that_folds(model, tokenizer):
    made = recipe(
        model, [small_task(documents=1, judging=Judging("contains_any", 30))], methods=("full", "snapkv @ 40")
    )
    folding = replace(made, space=replace(made.space, fold_every=8))
    examples = {each.name: each for group in made.groups for each in group.examples}
    for row in all_rows(folding, model, tokenizer):
        ids = example_tokens(tokenizer, examples[row.example], chat_template=True)
        folds = None if row.method == "full" else 8
        cache = winnow.CompressedCache(model, winnow.method(row.method), fold_every=folds)
        assert row.prediction == generated(model, tokenizer, ids, cache, 30), row
