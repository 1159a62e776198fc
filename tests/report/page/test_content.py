"""Numbers of a section against those worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support.report_runs import SEEN, TEXT, ruler_rows, text_rows
from support.runs import ABOUT, ROW
from winnow.report.page import Content, content_of, sections_of
from winnow.report.page.data import section_data
from winnow.report.page.methods import budgets_of, method_name
from winnow.report.page.results import BOOTSTRAP, holding
from winnow.report.page.slices import number
from winnow.runs.folder import About, Run
from winnow.runs.intervals import SHARES, Clusters, mean_interval
from winnow.runs.rows import Row

CELLS = count()
TASKS = {"easy": "contains_all", "hard": "contains_all"}
TWO_TASKS = replace(ABOUT, measures=TASKS)


def row(task: str, example: str, method: str, score: float, **changes: Any) -> Row:
    named = {
        "cell": str(next(CELLS)),
        "task": task,
        "example": example,
        "content": example,
        "context": example,
        "method": method,
    }
    return replace(ROW, **named, scores={"contains_all": score}, **changes)


def content(about: About, rows: Iterable[Row]) -> Content:
    (section,) = sections_of([Run(Path("run"), about, tuple(rows))])
    return content_of(section, 1)


def means(found: Content, name: str) -> dict[str, tuple[float, int]]:
    """Mean and examples by method, of all lengths together."""
    results = (each for each in found.results if each.slice.name == name and each.slice.length is None)
    return {each.method.text: (each.estimate.mean, each.examples) for each in results}


def test_a_mean_over_tasks_counts_every_task_the_same() -> None:
    rows = [row("easy", str(number), "full", 1.0) for number in range(3)] + [row("hard", "0", "full", 0.5)]
    found = content(TWO_TASKS, rows)
    assert means(found, "easy") == {"full": (1.0, 3)}
    assert means(found, "hard") == {"full": (0.5, 1)}
    assert means(found, "all tasks") == {"full": (0.75, 4)}


def test_a_method_that_lacks_a_task_has_no_mean_over_all_and_fewer_examples_are_told() -> None:
    rows = [row(task, str(number), "full", 1.0) for task in TASKS for number in range(3)]
    found = content(TWO_TASKS, [*rows, row("easy", "0", "adakv @ 10%", 1.0)])
    assert set(means(found, "all tasks")) == {"full"}
    (partial,) = (each for each in found.results if not each.whole)
    assert (partial.method.text, partial.slice.name, partial.examples, partial.most) == ("adakv @ 10%", "easy", 1, 3)
    assert any("adakv @ 10% lack whole tasks" in note for note in found.notes)
    assert any("fewer examples" in note for note in found.notes)


def test_a_run_that_is_not_finished_is_told_and_no_number_of_it_is_whole() -> None:
    plan = {"full": {"easy": 4, "hard": 4}, "adakv @ 10%": {"easy": 4, "hard": 4}}
    rows = [row(task, str(number), "full", 1.0) for task in TASKS for number in range(3)]
    found = content(replace(TWO_TASKS, planned=plan), rows)
    assert found.notes[0] == "run is not finished: 6 of 16 results."
    assert {(each.slice.name, each.examples, each.most) for each in found.results} == {
        ("all tasks", 6, 8), ("easy", 3, 4), ("hard", 3, 4)
    }  # fmt: skip
    assert not any(each.whole for each in (*found.results, *found.costs))
    assert content(TWO_TASKS, rows).notes == []


def test_shards_in_folders_of_their_own_are_finished_together() -> None:
    plan = {"/a/x(scores=/runs/h.json) @ 5%": {"easy": 4}, "full": {"easy": 4}}
    about = replace(ABOUT, planned=plan)
    runs = [Run(Path(name), about, tuple(row("easy", number, method, 1.0) for method in plan for number in numbers))
            for name, numbers in (("0", "01"), ("1", "23"))]  # fmt: skip
    alone, together = (content_of(sections_of(given)[0], 1) for given in (runs[:1], runs))
    assert alone.notes[0] == "0 is not finished: 4 of 8 results."
    assert together.notes == []
    assert all(each.whole for each in together.results)


def test_costs_of_fewer_examples_are_not_whole() -> None:
    rows = [row("easy", str(number), "full", 1.0) for number in range(3)]
    found = content(ABOUT, [*rows, row("easy", "0", "adakv @ 10%", 1.0)])
    assert [(each.method.text, each.examples, each.most) for each in found.costs] == [
        ("full", 3, 3),
        ("adakv @ 10%", 1, 3),
    ]
    assert section_data(found)["costs"][1]["most"] == 3


def test_the_full_cache_has_no_interval_against_itself() -> None:
    found = content(TEXT, text_rows(("full", "adakv @ 10%"), examples=3))
    wide = {(each.method.text, each.quantity): each.estimate.low < each.estimate.high for each in found.results}
    assert {place for place, there in wide.items() if not there} == {("full", "kl"), ("full", "agreement")}
    assert len(wide) == 6


def test_intervals_are_those_of_the_values() -> None:
    values = [0.0, 1.0, 1.0, 0.25, 1.0]
    found = content(ABOUT, [row("easy", str(number), "full", value) for number, value in enumerate(values)])
    assert found.results[0].estimate == mean_interval([Clusters.of(values)], SHARES, BOOTSTRAP)


def test_sizes_are_means_and_times_are_medians() -> None:
    times = [(1.0, 0.1, 4, 0.4), (2.0, 0.2, 2, 0.1), (9.0, 0.9, 0, 0.0)]
    rows = [
        row("easy", str(number), "adakv @ 10%", 1.0, held_bytes=100 * (number + 1), prefill_seconds=prefill,
            compress_seconds=compress, decode_steps=steps, decode_seconds=decode)
        for number, (prefill, compress, steps, decode) in enumerate(times)
    ]  # fmt: skip
    (cost,) = content(ABOUT, rows).costs
    assert (cost.prefill_seconds, cost.compress_seconds) == (2.0, 0.2)
    # 100 and 50 ms; the third decoded nothing.
    assert cost.token_milliseconds == pytest.approx(75.0)
    assert (cost.holding.held_bytes, cost.holding.share) == pytest.approx((200.0, 0.2))


def test_a_share_of_a_batch_of_several_methods_is_no_time_of_one() -> None:
    rows = [row("easy", str(number), "full", 1.0, decode_steps=4, decode_seconds=0.4, together=3) for number in (0, 1)]
    (cost,) = content(ABOUT, rows).costs
    assert cost.token_milliseconds is None


def test_times_of_two_machines_are_apart() -> None:
    fast = replace(ABOUT, environment={"processor": "a fast one"})
    runs = [Run(Path(name), about, (row("easy", name, "full", 1.0, prefill_seconds=seconds),))
            for name, about, seconds in (("0", ABOUT, 4.0), ("1", fast, 1.0))]  # fmt: skip
    (section,) = sections_of(runs)
    found = content_of(section, 1)
    assert [(each.machine, each.prefill_seconds, each.runs) for each in found.costs] == [(1, 4.0, (1,)), (2, 1.0, (2,))]
    assert means(found, "easy") == {"full": (1.0, 2)}


def test_times_of_a_run_that_went_on_elsewhere_are_apart() -> None:
    elsewhere = {"processor": "a fast one"}
    rows = [
        row("easy", "0", "full", 1.0, prefill_seconds=4.0),
        row("easy", "1", "full", 1.0, prefill_seconds=1.0, environment=elsewhere),
    ]
    found = content(ABOUT, rows)
    assert [(each.machine, each.prefill_seconds, each.examples) for each in found.costs] == [(1, 4.0, 1), (2, 1.0, 1)]
    assert any("2 environments" in note for note in found.notes)
    assert section_data(found)["runs"][0]["machines"] == (1, 2)


def test_lengths_are_told_apart_and_together() -> None:
    rows = [row("easy", f"{length}{n}", "full", float(length == 1024), facts={"length": length})
            for length in (1024, 2048) for n in range(2)]  # fmt: skip
    found = content(ABOUT, rows)
    assert [(each.slice.length, each.estimate.mean) for each in found.results] == [
        (None, 0.5),
        (1024, 1.0),
        (2048, 0.0),
    ]


def test_perplexity_is_the_exponential_of_the_likelihood_and_lower_is_better() -> None:
    found = content(TEXT, text_rows(("full", "adakv @ 10%", "h2o @ 10%"), examples=3))
    by_name = {(each.quantity, each.method.text): each.estimate for each in found.results}
    losses = [each.scores["nll"] for each in text_rows(("full",), examples=3)]
    assert by_name["nll", "full"].mean == pytest.approx(math.exp(sum(losses) / 3))
    assert [(each.title, each.higher_is_better, each.percent) for each in found.quantities] == [
        ("perplexity", False, False), ("KL divergence", False, False), ("agreement", True, True)
    ]  # fmt: skip
    # The full cache first, then from better to worse.
    assert found.bases == ["full", "adakv", "h2o"]
    assert (found.predictions, found.heatmaps) == ([], [])


def test_a_heatmap_has_the_means_of_lengths_and_depths() -> None:
    places = [(length, depth) for length in (1024, 2048) for depth in (0, 25, 50) if (length, depth) != (2048, 50)]
    rows = [
        row("easy", f"{length}-{depth}-{n}", "full", float(n < depth / 25), facts={"length": length, "depth": depth})
        for length, depth in places
        for n in range(2)
    ]
    (found,) = content(ABOUT, rows).heatmaps
    assert (found.lengths, found.depths) == ((1024, 2048), (0, 25, 50))
    assert [[square and tuple(square) for square in line] for line in found.squares] == [
        [(0.0, 2), (0.0, 2)], [(0.5, 2), (0.5, 2)], [(1.0, 2), None]
    ]  # fmt: skip


def test_predictions_have_every_method_in_one_order_and_examples_by_number() -> None:
    rows = [row("easy", str(number), method, float(method == "full"), prediction=f"{method} says {number}")
            for number in (10, 9) for method in ("full", "adakv @ 10%") if (number, method) != (9, "full")]  # fmt: skip
    (found,) = content(ABOUT, rows).predictions
    assert found.methods == ("full", "adakv @ 10%")
    assert [(each["name"], each["said"]) for each in found.examples] == [
        ("9", [None, ["adakv @ 10% says 9", 0.0, False]]),
        ("10", [["full says 10", 1.0, False], ["adakv @ 10% says 10", 0.0, False]]),
    ]


def test_too_many_predictions_are_taken_evenly_and_that_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("winnow.report.page.predictions.LARGEST", 10 * (20 + 50))
    rows = [row("easy", str(number), "full", 1.0, prediction="x" * 50) for number in range(40)]
    found = content(ABOUT, rows)
    assert [each["name"] for each in found.predictions[0].examples] == [str(4 * number) for number in range(10)]
    assert any("10 of its 40 examples" in note for note in found.notes)
    # The numbers are about all of them.
    assert found.results[0].examples == 40


def test_a_long_prediction_is_cut() -> None:
    (found,) = content(ABOUT, [row("easy", "0", "full", 1.0, prediction="x" * 5000)]).predictions
    assert found.examples[0]["said"][0][0] == "x" * 2000 + "… (5,000 characters)"


def test_the_main_measure_is_the_score_and_others_keep_their_names() -> None:
    rows = [replace(row("easy", "0", "full", 1.0), scores={"contains_any": 0.25, "contains_all": 0.5, "own": 3.0})]
    found = content(replace(ABOUT, measures={"easy": "contains_all"}), rows)
    assert {each.quantity: each.estimate.mean for each in found.results} == {
        "score": 0.5, "contains_any": 0.25, "own": 3.0
    }  # fmt: skip
    assert [quantity.name for _, quantity in found.columns] == ["score"]


def test_truncated_prompts_and_a_missing_full_cache_are_told() -> None:
    rows = [row("easy", str(number), "adakv @ 10%", 1.0, truncated=number < 2) for number in range(3)]
    notes = " ".join(content(ABOUT, rows).notes)
    assert "2 of 3 prompts" in notes
    assert "full cache was not asked" in notes


def test_budgets_of_a_method_are_in_order() -> None:
    budgets = ("10%", "2%", "64", "1024", "1MiB", "512KiB")
    found = content(ABOUT, [row("easy", "0", f"adakv @ {budget}", 1.0) for budget in budgets])
    assert found.budgets == ["2%", "10%", "64", "1024", "512KiB", "1MiB"]
    assert [method.budget for method in found.methods] == found.budgets


def test_numbers_in_json_are_those_of_the_section() -> None:
    found = content(SEEN, ruler_rows(examples=2))
    data = section_data(found)
    assert [
        (data["slices"][each["slice"]]["name"], data["methods"][each["method"]]["text"], each["quantity"], each["mean"])
        for each in data["results"]
    ] == [(each.slice.name, each.method.text, each.quantity, each.estimate.mean) for each in found.results]
    assert data["runs"][0]["command"] == SEEN.command
    assert data["machines"] == [SEEN.environment]
    assert data["protocol"] == SEEN.protocol


def test_a_head_map_has_the_mean_share_of_every_head() -> None:
    rows = [
        replace(row("easy", str(n), "adakv @ 10%", 1.0), prompt_tokens=100, kept=[[10 + n, 0], [30, 100]])
        for n in range(3)
    ]
    (found,) = content(ABOUT, rows).headmaps
    assert found.examples == 3
    assert [list(map(pytest.approx, layer)) for layer in found.shares] == [[0.11, 0.0], [0.3, 1.0]]


def test_head_maps_are_of_methods_that_leave_tokens_out_and_of_rows_that_noted_them() -> None:
    noted = [replace(row("easy", "1", method, 1.0), kept=[[1, 2]]) for method in ("full", "full+bits(8)")]
    ragged = [replace(row("easy", "1", "adakv @ 10%", 1.0), kept=[[1, 2], [3]])]
    assert content(ABOUT, [*noted, *ragged, row("easy", "1", "h2o @ 10%", 1.0)]).headmaps == []


def test_files_of_methods_are_named_without_their_folders_unless_that_makes_two_methods_one() -> None:
    def shown(*methods: str) -> list[str]:
        rows = [row("easy", "0", method, 1.0) for method in methods]
        return [method.text for method in content(replace(ABOUT, measures={"easy": "contains_all"}), rows).methods]

    assert set(shown("cokv(scores=/runs/a/c.safetensors, alpha=3) @ 2%", "headkv-r(scores=../n.safetensors) @ 5%")) == {
        "cokv(scores=c.safetensors, alpha=3) @ 2%",
        "headkv-r(scores=n.safetensors) @ 5%",
    }
    # One line in a picture would have points of two methods.
    apart = ("cokv(scores=a/c.safetensors) @ 2%", "cokv(scores=b/c.safetensors) @ 5%", "full")
    assert set(shown(*apart)) == set(apart)
    quoted = 'cokv(scores="a/c, d.safetensors") @ 2%'
    assert shown(quoted) == [quoted]


def test_budgets_of_one_kind_stand_together() -> None:
    names = [method_name(f"snapkv @ {budget}") for budget in ("64", "1MiB", "50%", "8", "5%", "2KiB")]
    assert budgets_of([*names, method_name("full")]) == ["5%", "50%", "8", "64", "2KiB", "1MiB"]


def test_a_share_is_the_mean_of_shares() -> None:
    """A short prompt counts as much as a long one."""
    rows = [SimpleNamespace(held_bytes=held, full_bytes=full, slots=1.0) for held, full in ((1, 10), (9, 9), (0, 0))]
    found = holding([[SimpleNamespace(row=each) for each in rows]])
    assert found.share == pytest.approx((0.1 + 1 + 0) / 3)
    assert found.held_bytes == pytest.approx(10 / 3)


@pytest.mark.parametrize(
    ("value", "found"), [(True, None), ("7", None), (None, None), (10**400, None), (7, 7), (0.5, 0.5)]
)
def test_facts_that_can_be_drawn(value: object, found: float | None) -> None:
    assert number(replace(ROW, facts={"length": value}), "length") == found
    assert number(replace(ROW, facts={}), "length") is None


def test_one_question_shares_its_context_with_none() -> None:
    one = content(TWO_TASKS, [row("easy", "0", "full", 1.0)])
    assert not any("one context" in note for note in one.notes)
    two = [replace(row("easy", each, "full", 1.0), context="same") for each in "01"]
    assert any("one context" in note for note in content(TWO_TASKS, two).notes)


def test_a_single_depth_is_no_heatmap() -> None:
    def rows(depths: Iterable[float]) -> list[Row]:
        return [
            row("easy", f"{length}-{depth}", "full", 1.0, facts={"length": length, "depth": depth})
            for length in (1024, 2048) for depth in depths
        ]  # fmt: skip

    assert content(TWO_TASKS, rows([50.0])).heatmaps == []
    (found,) = content(TWO_TASKS, rows([50.0, 100.0])).heatmaps
    assert (found.lengths, found.depths) == ((1024, 2048), (50.0, 100.0))


def test_a_method_holds_what_it_holds_of_all_tasks() -> None:
    rows = [row(task, "0", "full", 1.0, held_bytes=held) for task, held in (("easy", 100), ("hard", 300))]
    found = content(TWO_TASKS, rows)
    held = found.holding(found.methods[0])
    assert held is not None
    assert held.held_bytes == 200


def test_a_method_without_a_result_for_all_tasks_stands_behind_those_that_have_one() -> None:
    rows = [row(task, "0", method, score) for method, score in (("full", 0.1), ("a @ 5%", 0.5)) for task in TASKS]
    found = content(TWO_TASKS, [*rows, row("easy", "0", "b @ 5%", 1.0)])
    assert [method.base for method in found.methods] == ["full", "a", "b"]


def test_a_mean_that_papers_print_is_not_told_twice() -> None:
    """BABILong's average is that of all five tasks."""
    tasks = [f"qa{number}" for number in range(1, 6)]
    about = replace(ABOUT, benchmark="babilong", measures=dict.fromkeys(tasks, "contains_all"))
    rows = [replace(row(task, "0", "full", 1.0), benchmark="babilong") for task in tasks]
    assert [part.name for part in content(about, rows).slices] == ["all tasks", *tasks]
