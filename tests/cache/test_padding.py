"""Masks of valid tokens as the host knows them: brought once, and places that say the same."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from support.elsewhere import counted, gpu_stand_in, there
from winnow.cache.padding import on_host, places_of

CPU = torch.device("cpu")


@given(st.lists(st.booleans(), min_size=1, max_size=12))
def test_places_are_those_of_the_mask(marks: list[bool]) -> None:
    valid, numbers = torch.tensor(marks), torch.arange(len(marks))
    places = places_of(valid, CPU)
    assert torch.equal(numbers[places], numbers[valid])
    inside = "".join(str(int(mark)) for mark in marks).strip("0")
    assert isinstance(places, slice) == ("0" not in inside)


def test_a_mask_is_brought_to_the_host_once() -> None:
    valid = torch.tensor([[False, True, True]])
    with gpu_stand_in() as notes:
        far = there(valid)
        assert all(torch.equal(on_host(far), valid) for _ in range(3))
        assert counted(notes) == {"download": 1}
    assert on_host(valid) is valid
