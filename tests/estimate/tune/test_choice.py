"""The choice of a value from counts."""

from __future__ import annotations

from types import SimpleNamespace

import winnow
from winnow.estimate.journal import Journal
from winnow.estimate.tune import answering
from winnow.estimate.tune.answering import AnswerCount, Answering, Setting
from winnow.estimate.tune.choice import Point, best_point, curve
from winnow.estimate.tune.intervals import wilson
from winnow.estimate.tune.questions import QuestionSplit
from winnow.metrics import metric
from winnow.tasks import generate_document


def point(value, *right):
    return Point(value, {str(index): AnswerCount(count, 10) for index, count in enumerate(right)})


def test_the_best_mean_wins_and_ties_go_to_the_default_then_to_the_first():
    assert best_point([point(1, 3, 3), point(2, 0, 7), point(3, 3, 3)], default=1).value == 2
    assert best_point([point(2, 4, 2), point(1, 2, 4), point(3, 0, 1)], default=1).value == 1
    assert best_point([point(3, 4, 2), point(2, 2, 4)], default=1).value == 3


def test_a_curve_has_a_point_per_value():
    tallies = {Setting(value, budget): AnswerCount(int(value), 4) for value in (2, 1) for budget in ("32", "64")}
    points = curve(tallies)
    assert [(each.value, each.accuracy, each.questions) for each in points] == [(2, 0.5, 4), (1, 0.25, 4)]
    # Asking a question at two budgets does not make two questions of it.
    assert points[0].interval == wilson(0.5, 4)


def test_answers_of_the_same_worths_in_another_order_count_as_much(tmp_path, monkeypatch):
    """0.1 + 0.2 + 0.3 is more than 0.3 + 0.2 + 0.1 in floating point."""
    methods = {Setting(value, "64"): winnow.method(f"cokv(alpha={value})", 64) for value in (1, 2)}
    worths = dict(zip(methods.values(), [(0.3, 0.2, 0.1), (0.1, 0.2, 0.3)], strict=True))
    told = [SimpleNamespace(method=each, score=score) for each, scores in worths.items() for score in scores]
    monkeypatch.setattr(answering, "evaluate", lambda *_: told)
    journal = Journal.open(tmp_path / "journal", {})
    asked = Answering(
        None, None, QuestionSplit((generate_document(1, 200, 1),), ()), journal, judged=metric("token_f1")
    )
    assert set(asked.tally("validation", methods).values()) == {AnswerCount(0.6, 3)}
