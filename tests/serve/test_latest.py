"""Latest values by what texts begin with: against a plain list of what was used, the latest last."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from winnow.serve.latest import Latest


class Sized(NamedTuple):
    name: int
    nbytes: int


@given(
    st.integers(0, 4),
    st.none() | st.integers(0, 20),
    st.lists(
        st.tuples(st.booleans(), st.sampled_from("xy"), st.text("ab", max_size=3), st.integers(0, 12)), max_size=30
    ),
)
def test_the_latest_are_held_within_both_bounds(most: int, most_bytes: int | None, done) -> None:
    latest: Latest[str, Sized] = Latest(most, most_bytes)
    used: list[tuple[str, str, Sized]] = []

    def fits() -> bool:
        return len(used) <= most and (most_bytes is None or sum(each[2].nbytes for each in used) <= most_bytes)

    for number, (is_kept, kind, text, nbytes) in enumerate(done):
        if is_kept:
            value = Sized(number, nbytes)
            there = [each for each in used if each[:2] == (kind, text)]
            if most and (most_bytes is None or nbytes <= most_bytes):
                used = [each for each in used if each not in there] + [(kind, text, value)]
            latest.keep(kind, text, value)
            while not fits():
                used.pop(0)
        else:
            known = [each for each in used if each[0] == kind and text.startswith(each[1])]
            expected = max(known, key=lambda each: len(each[1]), default=None)
            found = latest.longest(kind, text.startswith)
            assert found == (expected and expected[2])
            if expected:
                used.append(used.pop(used.index(expected)))
        assert len(latest) == len(used)
        assert latest.nbytes == sum(each[2].nbytes for each in used)
    latest.forget()
    assert (len(latest), latest.nbytes) == (0, 0)
