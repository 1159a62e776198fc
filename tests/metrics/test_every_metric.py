"""Laws that all metrics keep."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from winnow.metrics import Expected, Metric, MetricError, metric, metrics
from winnow.metrics.libraries import library

CHOICES = ("Paragraph 7 is 12", "段落7 is a city", "Paragraph 9")
RIGHT = {
    "retrieval": ("Paragraph 7", "Paragraph 12"),
    "retrieval_zh": ("段落7", "段落12"),
    "count": ("7", "12"),
    "final_number": ("#### 1,250", "12.5"),
    "math_answer": (r"\frac{1}{2}", r"x \boxed{12}", "two words"),
    "classification": CHOICES[:2],
    "babilong": CHOICES[:2],
}
OTHERS = ("St. Louis is big", "the ΟΔΟΣ 7", "北京大学 在海淀区")
PIECES = [*OTHERS, *CHOICES, "ΟΔΟΣ", " ", "\n", ".", "7", "12", "St.", " Louis", "段落7", "# ", "`", r"\boxed{12}", "a"]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=6).map("".join)


def _expected(judged: Metric) -> st.SearchStrategy[Expected]:
    right = RIGHT.get(judged.name, OTHERS)
    return st.lists(st.sampled_from(right), min_size=1, unique=True).map(lambda some: Expected(tuple(some), CHOICES))


every_metric = pytest.mark.parametrize("judged", metrics(), ids=lambda each: each.name)


@every_metric
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_scores_are_shares_that_the_order_of_right_answers_does_not_change(judged: Metric, data: st.DataObject) -> None:
    expected, answer = data.draw(_expected(judged)), data.draw(TEXTS)
    score = judged.score(answer, expected)
    assert 0 <= score <= 1
    assert judged.score(answer, Expected(expected.answers[::-1], CHOICES[::-1])) == score


@every_metric
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_nothing_changes_what_is_settled(judged: Metric, data: st.DataObject) -> None:
    expected, begun = data.draw(_expected(judged)), data.draw(TEXTS)
    if judged.settled(begun, expected):
        assert judged.score(begun + data.draw(TEXTS), expected) == judged.score(begun, expected)


@every_metric
def test_a_right_answer_is_worth_everything(judged: Metric) -> None:
    right = RIGHT.get(judged.name, OTHERS)
    said = [" ".join(right)] if judged.name == "contains_all" else right
    # The package rouge falls short of 1 by 5e-9.
    assert [judged.score(text, Expected(right, CHOICES)) for text in said] == pytest.approx([1] * len(said), abs=1e-8)


@every_metric
def test_an_example_needs_a_right_answer(judged: Metric) -> None:
    with pytest.raises(MetricError, match="right answer"):
        judged.score("7", Expected(()))


@every_metric
def test_libraries_that_a_metric_needs_are_told_before_any_work(
    judged: Metric, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("winnow.metrics.libraries.find_spec", lambda name: None)
    if not judged.libraries:
        assert metric(judged.name) is judged
        return
    with pytest.raises(MetricError, match=r"pip install 'winnow-kv\[eval\]'"):
        metric(judged.name)
    with pytest.raises(MetricError, match=r"pip install 'winnow-kv\[eval\]'"):
        library(judged.libraries[0])


@pytest.mark.parametrize("name", ["contains_all", "contains_any"])
def test_a_sigma_at_the_end_may_still_become_another_letter(name: str) -> None:
    """It is lowered to another letter within a word, and what follows makes the end no end."""
    judged, expected = metric(name), Expected(("ΟΔΟΣ",))
    assert judged.score("ΟΔΟΣ", expected) == 1
    assert judged.score("ΟΔΟΣΑ", expected) == 0
    assert not judged.settled("ΟΔΟΣ", expected)
    assert judged.settled("ΟΔΟΣ ", expected)
