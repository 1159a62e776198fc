"""Validation questions, and those that are refused."""

from __future__ import annotations

import pytest

from winnow.estimate.cokv.examples import generated_examples
from winnow.estimate.cokv.settings import Terms
from winnow.estimate.cokv.utility import CoalitionUtility
from winnow.estimate.errors import ShapleyError
from winnow.metrics import Expected


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
