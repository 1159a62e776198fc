"""Put: the metric of a task whose first line alone counts."""

from __future__ import annotations

import pytest

from winnow.metrics import Expected, metric
from winnow.tasks.example import Judging
from winnow.tasks.put import judged_by

EXPECTED = Expected(("cat",))


@pytest.mark.parametrize(
    ("answer", "first", "whole"), [("cat\ndog", 1.0, 2 / 3), ("\n\ncat\ndog", 1.0, 2 / 3), ("dog\ncat", 0.0, 2 / 3)]
)
def test_the_first_line_is_judged_where_it_alone_counts(answer, first, whole):
    assert judged_by(Judging("token_f1", 8, first_line=True)).score(answer, EXPECTED) == pytest.approx(first)
    assert judged_by(Judging("token_f1", 8)).score(answer, EXPECTED) == pytest.approx(whole)


def test_an_answer_is_settled_when_its_first_line_is_over():
    judge = judged_by(Judging("token_f1", 8, first_line=True))
    assert judge.name == "token_f1"
    assert [judge.settled(said, EXPECTED) for said in ("", "\n", "\ncat", "\ncat\n")] == [False, False, False, True]
    # What settles the whole answer settles its line, too.
    assert judged_by(Judging("contains_any", 8, first_line=True)).settled("a cat", EXPECTED)
    assert judged_by(Judging("token_f1", 8)) == metric("token_f1")
