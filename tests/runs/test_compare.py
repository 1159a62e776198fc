"""Comparisons of methods and runs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from support.runs import ABOUT
from support.written_runs import rows_of, run_of
from winnow.runs.compare import Wish, compare_runs
from winnow.runs.folder import RunError
from winnow.runs.intervals import DIFFERENCES, Bootstrap, Clusters, mean_interval, sign_flip_p

GOOD = [1.0] * 30 + [0.0] * 10
BAD = [0.0] * 15 + [1.0] * 15 + [0.0] * 10
"""Wrong where the other is right, 15 times."""


def only(compared):
    (found,) = compared.comparisons
    return found


def test_a_method_is_compared_with_the_full_cache():
    run = run_of([*rows_of("qa", "full", GOOD), *rows_of("qa", "snapkv @ 5%", BAD)])
    found = only(compare_runs([run]))
    assert (found.arm.method, found.baseline.method, found.tasks) == ("snapkv @ 5%", "full", ("qa",))
    assert (found.examples, found.contexts, found.missing, found.missing_in_baseline) == (40, 40, 0, 0)
    assert (found.score, found.baseline_score) == (0.375, 0.75)
    differences = [Clusters.of([-1.0] * 15 + [0.0] * 25)]
    assert found.difference == mean_interval(differences, DIFFERENCES)
    assert found.p == sign_flip_p(differences)
    assert found.verdict == "worse"


def test_pairing_tells_apart_what_two_means_do_not():
    """Each right in half of the cases, with one better by a tenth in the same ones."""
    run = run_of([*rows_of("qa", "full", [1.0] * 20 + [0.0] * 20), *rows_of("qa", "a @ 5%", [1.0] * 14 + [0.0] * 26)])
    found = only(compare_runs([run]))
    assert found.verdict == "worse"
    apart = [mean_interval([Clusters.of([1.0] * right + [0.0] * (40 - right))]) for right in (20, 14)]
    assert apart[1].high > apart[0].low


def test_few_examples_are_not_told_apart():
    run = run_of([*rows_of("qa", "full", [1.0] * 5), *rows_of("qa", "random @ 5%", [0.0] * 5)])
    assert only(compare_runs([run])).verdict == "not told apart"


def test_methods_that_never_differed_have_an_interval():
    """Examples to come may tell them apart."""
    run = run_of([*rows_of("qa", "full", [1.0] * 40), *rows_of("qa", "snapkv @ 5%", [1.0] * 40)])
    found = only(compare_runs([run])).difference
    assert found.low < 0 < found.high


def test_words_about_a_protocol_may_change():
    """Its rules count, not the summary that people read."""
    rows = rows_of("qa", "full", GOOD)
    other = run_of(rows, "other", protocol={**ABOUT.protocol, "summary": "Told in other words."})
    assert only(compare_runs([run_of(rows), other])).verdict == "not told apart"


def test_contexts_with_several_questions_are_drawn_together():
    contexts = [str(index // 8) for index in range(40)]
    rows = [*rows_of("qa", "full", GOOD, contexts), *rows_of("qa", "snapkv @ 5%", BAD, contexts)]
    found = only(compare_runs([run_of(rows)]))
    assert found.contexts == 5
    assert found.difference == mean_interval([Clusters.of([-1.0] * 15 + [0.0] * 25, contexts)], DIFFERENCES)
    assert found.verdict == "not told apart"


def test_questions_about_a_single_context_tell_of_it_alone():
    rows = [*rows_of("qa", "full", GOOD, ["one"] * 40), *rows_of("qa", "snapkv @ 5%", BAD, ["one"] * 40)]
    compared = compare_runs([run_of(rows)])
    found = only(compared)
    assert (found.contexts, found.verdict) == (1, "worse")
    assert found.difference == mean_interval([Clusters.of([-1.0] * 15 + [0.0] * 25)], DIFFERENCES)
    assert compared.notes == ["All questions of qa share one context; their intervals tell of it alone."]


def test_a_task_is_compared_by_the_first_score_of_its_rows():
    """A task is judged by fidelity, say; its rows have measures of that."""
    rows = [replace(row, scores={"nll": 2.0, "kl": 0.1}) for m in ("full", "a @ 5%") for row in rows_of("t", m, [1.0])]
    assert only(compare_runs([run_of(rows, measures={"t": "fidelity"})])).measure.name == "nll"


def test_another_baseline_is_found_whatever_its_blanks():
    rows = [row for method in ("full", "a @ 5%", "a @ 10%") for row in rows_of("qa", method, GOOD)]
    found = compare_runs([run_of(rows)], Wish(baseline="a@10%")).comparisons
    assert [(each.arm.method, each.baseline.method) for each in found] == [("a @ 5%", "a @ 10%"), ("full", "a @ 10%")]
    methods = [f"a @ {budget}" for budget in ("10%", "2.5%", "5%", "100%")]
    ordered = compare_runs([run_of(row for method in [*methods, "full"] for row in rows_of("qa", method, GOOD))])
    assert [each.arm.method for each in ordered.comparisons] == ["a @ 2.5%", "a @ 5%", "a @ 10%", "a @ 100%"]
    with pytest.raises(RunError, match=r"'b @ 10%'.*a @ 10%.*a @ 5%.*full"):
        compare_runs([run_of(rows)], Wish(baseline="b @ 10%"))


def test_a_baseline_of_several_runs_is_compared_with_the_same_method_of_the_others():
    one, other = run_of(rows_of("qa", "full", GOOD)), run_of(rows_of("qa", "full", BAD))
    found = only(compare_runs([one, replace(other, path=other.path / "other")], Wish(baseline="full")))
    assert (found.arm.method, found.baseline.method, found.score) == ("full", "full", 0.375)


def test_a_run_without_the_full_cache_needs_a_baseline():
    with pytest.raises(RunError, match="--baseline"):
        compare_runs([run_of(rows_of("qa", "a @ 5%", GOOD))])


def test_a_single_method_has_nothing_to_be_compared_with():
    with pytest.raises(RunError, match=r"nothing to compare.*results of full only: let winnow eval add others"):
        compare_runs([run_of(rows_of("qa", "full", GOOD))])


def test_the_mean_over_tasks_weighs_tasks_alike():
    rows = [
        *rows_of("one", "full", [1.0] * 10),
        *rows_of("one", "a @ 5%", [0.0] * 10),
        *rows_of("two", "full", [1.0] * 30),
        *rows_of("two", "a @ 5%", [1.0] * 30),
    ]
    *tasks, mean = compare_runs([run_of(rows)]).comparisons
    assert [each.tasks for each in tasks] == [("one",), ("two",)]
    assert mean.tasks == ("one", "two")
    assert (mean.score, mean.baseline_score, mean.difference.mean) == (0.5, 1.0, -0.5)
    assert mean.examples == 40


def test_lower_is_better_where_the_measure_says_so():
    losses = [2.0 + 0.01 * index for index in range(30)]
    worse = [each + 0.3 + 0.01 * (index % 3) for index, each in enumerate(losses)]
    rows = [*rows_of("text", "full", losses, measure="nll"), *rows_of("text", "a @ 5%", worse, measure="nll")]
    found = only(compare_runs([run_of(rows)]))
    assert found.difference.mean == pytest.approx(0.31)
    assert found.verdict == "worse"
    assert only(compare_runs([run_of(rows)], Wish(baseline="a @ 5%"))).verdict == "better"


def test_tasks_that_are_judged_in_different_units_have_no_mean():
    rows = [
        *rows_of("text", "full", [2.0] * 9, measure="nll"),
        *rows_of("text", "a @ 5%", [2.5] * 9, measure="nll"),
        *rows_of("qa", "full", [1.0] * 9),
        *rows_of("qa", "a @ 5%", [1.0] * 9),
    ]
    assert [each.tasks for each in compare_runs([run_of(rows)]).comparisons] == [("qa",), ("text",)]


def test_another_measure_that_rows_carry():
    rows = [
        replace(row, scores={**row.scores, "kl": 0.1 if row.method == "full" else 0.2})
        for method in ("full", "a @ 5%")
        for row in rows_of("text", method, [2.0] * 9, measure="nll")
    ]
    found = only(compare_runs([run_of(rows)], Wish(measure="kl")))
    assert (found.measure.name, found.verdict) == ("kl", "worse")
    with pytest.raises(RunError, match="has no agreement, only nll, kl"):
        compare_runs([run_of(rows)], Wish(measure="agreement"))
    with pytest.raises(RunError, match="no measure 'nl'"):
        compare_runs([run_of(rows)], Wish(measure="nl"))


def test_missing_results_are_counted():
    rows = [*rows_of("qa", "full", GOOD[:35]), *rows_of("qa", "a @ 5%", GOOD)[3:], *rows_of("more", "full", GOOD)]
    compared = compare_runs([run_of(rows)])
    found = only(compared)
    assert (found.examples, found.missing, found.missing_in_baseline) == (32, 3, 5)
    assert "a @ 5% and full have no example in common in more" in compared.notes[0]


def test_runs_are_compared_with_the_first():
    first = run_of([*rows_of("qa", "full", GOOD), *rows_of("qa", "a @ 5%", BAD)], "first")
    second = run_of([*rows_of("qa", "b @ 5%", BAD), *rows_of("qa", "a @ 5%", GOOD)], "second")
    found = only(compare_runs([first, second]))
    assert (found.arm, found.baseline) == ((second, "a @ 5%"), (first, "a @ 5%"))
    assert found.verdict == "better"
    against_full = compare_runs([first, second], Wish(baseline="full")).comparisons
    assert [(str(each.arm.run.path), each.arm.method) for each in against_full] == [
        ("first", "a @ 5%"),
        ("second", "a @ 5%"),
        ("second", "b @ 5%"),
    ]
    third = run_of(rows_of("qa", "c @ 5%", GOOD), "third")
    with pytest.raises(RunError, match=r"no method in common; first has .*--baseline"):
        compare_runs([first, third])


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"benchmark": "longbench"}, "different benchmarks, ruler and longbench"),
        ({"protocol": {"name": "plain", "question_seen": False}}, r"protocols.*question_seen \(true, false\)"),
        ({"measures": {"qa": "contains_any"}}, r"different measures: qa \(\"contains_all\", \"contains_any\"\)"),
        ({"model": replace(ABOUT.model, fingerprint="4567")}, r"fingerprint \(\"0123\", \"4567\"\).*--models"),
        ({"model": replace(ABOUT.model, dtype="bfloat16")}, r"dtype.*--models"),
    ],
)
def test_runs_that_do_not_go_together_are_refused(changed, told):
    rows = rows_of("qa", "full", GOOD)
    with pytest.raises(RunError, match=told):
        compare_runs([run_of(rows), run_of(rows, "other", **changed)])


def test_runs_whose_prompts_are_written_otherwise_are_refused():
    rows = rows_of("qa", "full", GOOD)
    one, other = (run_of(rows, each, model=replace(ABOUT.model, prompts=each)) for each in ("one", "other"))
    with pytest.raises(RunError, match=r"different models.*prompts \(\"one\", \"other\"\)"):
        compare_runs([one, other])


def test_models_are_compared_where_that_is_meant():
    rows = rows_of("qa", "full", GOOD)
    other = run_of(rows_of("qa", "full", BAD), "other", model=replace(ABOUT.model, name="b", fingerprint="4567"))
    assert only(compare_runs([run_of(rows), other], Wish(models=True))).verdict == "worse"


def test_the_same_model_from_another_place_is_the_same():
    rows = rows_of("qa", "full", GOOD)
    other = run_of(rows, "other", model=replace(ABOUT.model, name="/elsewhere"))
    assert only(compare_runs([run_of(rows), other])).verdict == "not told apart"


def test_other_texts_under_the_same_name_are_refused():
    rows = rows_of("qa", "full", GOOD)
    others = run_of([replace(row, content=f"{row.content}!") for row in rows], "other", request={"seed": 1})
    with pytest.raises(RunError, match=r"other texts in other than in run.*seed \(0, 1\)"):
        compare_runs([run_of(rows), others])


def test_more_examples_of_the_same_texts_compare():
    rows = rows_of("qa", "full", GOOD)
    found = only(compare_runs([run_of(rows), run_of(rows[:20], "other", request={"seed": 0, "examples": 20})]))
    assert (found.examples, found.missing) == (20, 20)


def test_other_versions_are_told():
    rows = rows_of("qa", "full", GOOD)
    compared = compare_runs([run_of(rows), run_of(rows, "other", environment={"processor": "another"})])
    assert compared.notes == ['The runs differ in processor ("some processor", "another").']


def test_two_results_of_one_example_are_refused():
    rows = rows_of("qa", "full", GOOD)
    twice = run_of([*rows, *rows_of("qa", "a @ 5%", GOOD), replace(rows[0], cell="x", scores={"contains_all": 0.0})])
    with pytest.raises(RunError, match=r"two results of example 0 of qa under full.*delete one of the lines"):
        compare_runs([twice])


def test_level_and_seed_are_those_wished_for():
    run = run_of([*rows_of("qa", "full", GOOD), *rows_of("qa", "a @ 5%", BAD)])
    wide, narrow = (
        only(compare_runs([run], Wish(bootstrap=Bootstrap(level=level)))).difference for level in (0.99, 0.8)
    )
    assert wide.low < narrow.low < narrow.high < wide.high


def test_a_run_that_is_not_finished_is_told():
    rows = [*rows_of("qa", "full", GOOD), *rows_of("qa", "snapkv @ 5%", BAD[:9])]
    run = run_of(rows, "begun", planned={"full": {"qa": 40}, "snapkv @ 5%": {"qa": 40}, "h2o @ 5%": {"qa": 40}})
    assert compare_runs([run]).notes[0] == "begun is not finished: 49 of 120 results."
    whole = run_of(rows, planned={"full": {"qa": 40}, "snapkv @ 5%": {"qa": 9}})
    assert compare_runs([whole]).notes == []


def test_a_single_question_shares_its_context_with_none():
    run = run_of([*rows_of("qa", "full", [1.0]), *rows_of("qa", "a @ 5%", [0.0])])
    assert compare_runs([run]).notes == []
