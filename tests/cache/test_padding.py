"""Masks of valid tokens as the host knows them: brought once, and places that say the same."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

import winnow
from support.elsewhere import counted, gpu_stand_in, moved_model, there
from support.families import prompt
from support.small_caches import N, made
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


def test_a_padded_prompt_is_looked_at_once_for_all_rows_and_layers() -> None:
    model = moved_model(made())
    mask = torch.ones(3, N, dtype=torch.int64)
    mask[0, :7], mask[1, 30:] = 0, 0
    with gpu_stand_in() as notes, torch.no_grad():
        past = winnow.CompressedCache(model, "keydiff @ 9")
        model(there(prompt(rows=3, length=N)), attention_mask=there(mask), past_key_values=past)
        looks = [note for note in notes if note[0] in ("download", "nonzero") and "settle" not in note[1]]
    assert looks == [("download", "cache/padding.py:on_host")]
