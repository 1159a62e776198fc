"""Kinds of models that are refused before weights are read."""

from __future__ import annotations

import pytest
from transformers import AutoConfig

from winnow.errors import ModelError
from winnow.models.kinds import check_compressible


def test_a_model_that_counts_cached_tokens_in_the_middle_of_a_pass_is_refused():
    with pytest.raises(ModelError, match=r"Idefics \(idefics\) asks its cache how many tokens.*use its own cache"):
        check_compressible(AutoConfig.for_model("idefics"), "Idefics")


def test_its_successors_are_not():
    for name in ("idefics2", "idefics3"):
        check_compressible(AutoConfig.for_model(name), name)
