"""Plain values as the types that dataclasses declare, and everything else refused with its place."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, ClassVar, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from winnow.typed import Between, Longest, TypedError, read_as

Small = Annotated[int, Between(0, 9)]


@dataclass(frozen=True)
class Apple:
    name_in_files: ClassVar[str] = "apple"
    seeds: Small


@dataclass(frozen=True)
class Pear:
    name_in_files: ClassVar[str] = "pear"
    weight: float


@dataclass(frozen=True)
class Basket:
    owner: str
    open: bool
    color: Literal["red", "green"]
    fruit: Apple | Pear
    sizes: Annotated[list[Small], Longest(3)]
    place: tuple[int, int]
    many: tuple[str, ...] = ()
    note: str | None = None
    label: str | int | None = None
    named: dict[str, float] = field(default_factory=dict)
    anything: Any = None


WHOLE: dict[str, Any] = {
    "owner": "Ada",
    "open": True,
    "color": "red",
    "fruit": {"kind": "pear", "weight": 3},
    "sizes": [1, 2],
    "place": [4, 5],
}


def test_a_value_is_read_as_declared() -> None:
    found = read_as(Basket, {**WHOLE, "many": ["a"], "label": 7, "named": {"x": 1}}, "it")
    assert found == Basket("Ada", True, "red", Pear(3.0), [1, 2], (4, 5), ("a",), None, 7, {"x": 1.0})
    assert isinstance(found.fruit.weight, float)  # type: ignore[union-attr]


REFUSED: dict[str, dict[str, Any]] = {
    "it.owner is 3 and must be a text": {"owner": 3},
    "it.owner is null": {"owner": None},
    "it.open is 1 and must be true or false": {"open": 1},
    "it.color is 'blue'; known are 'red', 'green'": {"color": "blue"},
    "it.color is a list; known": {"color": []},
    "it.fruit is 'plum'; known are 'apple', 'pear'": {"fruit": {"kind": "plum"}},
    "it.fruit is a list and must have names": {"fruit": []},
    "it.fruit has no weight": {"fruit": {"kind": "pear"}},
    "it.fruit has unknown wings": {"fruit": {"kind": "pear", "weight": 1, "wings": 2}},
    "it.fruit.weight is inf and must be finite": {"fruit": {"kind": "pear", "weight": 1e999}},
    "it.fruit.weight is a number that is too large": {"fruit": {"kind": "pear", "weight": 10**400}},
    "it.fruit.seeds is true and must be a whole number": {"fruit": {"kind": "apple", "seeds": True}},
    r"it.sizes\[1\] is 12 and must be in 0 ... 9": {"sizes": [1, 12]},
    r"it.sizes\[0\] is a int": {"sizes": [10**400]},
    r"it.sizes\[0\] is 1.0 and must be a whole number": {"sizes": [1.0]},
    "it.sizes is 'ab' and must be a list": {"sizes": "ab"},
    "it.sizes has 1,000,000 entries, of 3 at most": {"sizes": [99] * 1_000_000},
    "it.place has 3 entries and must have 2": {"place": [1, 2, 3]},
    "it.label is 1.5": {"label": 1.5},
    "it.named.x is 'y'": {"named": {"x": "y"}},
    "it has unknown wheels": {"wheels": 4},
}


@pytest.mark.parametrize("mistake", REFUSED)
def test_other_values_are_refused_with_their_place(mistake: str) -> None:
    with pytest.raises(TypedError, match=f"^{mistake}"):
        read_as(Basket, {**WHOLE, **REFUSED[mistake]}, "it")


def test_missing_names_are_listed() -> None:
    with pytest.raises(TypedError, match="it has no owner, sizes"):
        read_as(Basket, {name: value for name, value in WHOLE.items() if name not in ("owner", "sizes")}, "it")


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(st.text(max_size=5), inside, max_size=3),
    max_leaves=8,
)


@given(st.sampled_from(sorted([*WHOLE, "many", "note", "label", "named"])), plain)
def test_any_value_is_refused_or_read_as_it_is(name: str, value: Any) -> None:
    refused = ""
    try:
        found = read_as(Basket, {**WHOLE, name: value}, "it")
    except TypedError as problem:
        refused = str(problem)
    if refused:
        assert refused.startswith("it")
        assert len(refused) < 400
        return
    told = json.loads(json.dumps(asdict(found)))[name]
    assert told == (value if name != "fruit" else {key: each for key, each in value.items() if key != "kind"})
