"""Whole decode steps as CUDA graphs, through Triton's kernels: as ordinary steps on the CPU are."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from support.families import prompt
from support.graphed import PROMPT, Pair, Places, places

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def both_places() -> Iterator[Places]:
    with places(kernels=True) as found:
        yield found


@pytest.mark.parametrize("method", ["adakv+bits(4, rotate=true)", "snapkv+spark(0.5)"])
def test_replayed_steps_over_packed_slots_are_as_ordinary_ones(both_places: Places, method: str) -> None:
    both = both_places.pair(f"{method} @ 12")
    both.graphed()
    assert both.steps(4) == [False, False, True, True]


def test_rows_of_a_padded_batch_have_positions_of_their_own(both_places: Places) -> None:
    ids, mask = prompt(2, PROMPT), torch.ones(2, PROMPT, dtype=torch.int64)
    mask[0, :7] = 0
    both = Pair(both_places, "adakv(window=4) @ 12", rows=2)
    both.ordinary(ids, attention_mask=mask, position_ids=(mask.cumsum(1) - 1).clamp(min=0))
    both.graphed()
    assert both.steps(4, position_ids=torch.tensor([[PROMPT - 7], [PROMPT]])) == [False, False, True, True]


def test_tokens_that_are_taken_back_leave_the_memory_of_a_graph(both_places: Places) -> None:
    """Several at a time need more of it than a graph has."""
    both = both_places.pair("adakv(window=4) @ 12")
    both.graphed()
    assert both.steps(3)[-1]
    both.ordinary(prompt(length=3, seed=4))
    both.each(lambda cache: cache.crop(-3))
    assert both.steps(1) == [True]
