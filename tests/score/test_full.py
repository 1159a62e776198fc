"""The scorer that prefers nothing."""

from __future__ import annotations

from support.views import random_view, score
from winnow.score import Full


def test_full_prefers_nothing() -> None:
    assert (score(Full(), random_view()) == 0).all()
