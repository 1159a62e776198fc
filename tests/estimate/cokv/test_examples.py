"""Validation questions, and those that are refused."""

from __future__ import annotations

import pytest

from winnow.estimate.cokv.examples import ValidationExample, check_examples, generated_examples, hash_of
from winnow.estimate.cokv.settings import Terms
from winnow.estimate.cokv.utility import CoalitionUtility
from winnow.estimate.errors import ShapleyError
from winnow.metrics import Expected, metric


def test_validation_examples() -> None:
    examples = generated_examples(6)
    assert len(examples) == 6
    assert len({example.document for example in examples}) == 2
    assert examples[:4] == generated_examples(4)
    for count, tokens in ((0, 512), (4, 90)):
        with pytest.raises(ShapleyError):
            generated_examples(count, tokens)
    with pytest.raises(ShapleyError, match="no validation examples"):
        CoalitionUtility(None, None, [], Terms())  # type: ignore[arg-type]
    with pytest.raises(ShapleyError, match="example 2 has an empty answer"):
        CoalitionUtility(None, None, [examples[0], examples[1]._replace(expected=Expected((" ",)))], Terms())  # type: ignore[arg-type]


def test_one_empty_answer_among_several_is_refused():
    check_examples([ValidationExample("d", "q", Expected(("a", "b")))], metric("exact_match"))
    with pytest.raises(ShapleyError, match="example 1 has an empty answer"):
        check_examples([ValidationExample("d", "q", Expected(("a", " ")))], metric("exact_match"))


def test_other_choices_are_other_examples():
    found = {
        hash_of([ValidationExample("d", "q", Expected(("a",), choices))]) for choices in ((), ("a", "b"), ("a", "c"))
    }
    assert len(found) == 3
