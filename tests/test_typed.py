"""Plain values as the types that dataclasses declare, and everything else refused with its place."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, ClassVar, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from winnow.typed import Between, OneOf, Sized, TypedError, read_as, read_fields, shown

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
    sizes: Annotated[list[Small], Sized(most=3)]
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
    "it.owner must be a text, not 3": {"owner": 3},
    "it.owner must be a text, not null": {"owner": None},
    "it.open must be true or false, not 1": {"open": 1},
    'it.color must be one of "red", "green", not "blue"': {"color": "blue"},
    r'it.color must be one of "red", "green", not \[\]': {"color": []},
    'it.fruit.kind must be one of "apple", "pear", not "plum"': {"fruit": {"kind": "plum"}},
    r"it.fruit must be an object, not \[\]": {"fruit": []},
    'there is no "it.fruit.weight"': {"fruit": {"kind": "pear"}},
    'no "it.fruit.wings" belongs there, only weight': {"fruit": {"kind": "pear", "weight": 1, "wings": 2}},
    "it.fruit.weight must be a number, not Infinity": {"fruit": {"kind": "pear", "weight": 1e999}},
    "it.fruit.weight must be a number, not 1000": {"fruit": {"kind": "pear", "weight": 10**400}},
    "it.fruit.seeds must be a whole number from 0 to 9, not true": {"fruit": {"kind": "apple", "seeds": True}},
    r"it.sizes\[1\] must be a whole number from 0 to 9, not 12": {"sizes": [1, 12]},
    r"it.sizes\[0\] must be a whole number from 0 to 9, not a value of type int": {"sizes": [10**5000]},
    r"it.sizes\[0\] must be a whole number from 0 to 9, not 1.0": {"sizes": [1.0]},
    'it.sizes must be a list of at most 3 values, not "ab"': {"sizes": "ab"},
    r"it.sizes must be a list of at most 3 values, not \[99, 99": {"sizes": [99] * 1_000_000},
    r"it.place must be a list of 2 values, not \[1, 2, 3\]": {"place": [1, 2, 3]},
    "it.label must be a whole number, not 1.5": {"label": 1.5},
    r'it.named\["x"\] must be a number, not "y"': {"named": {"x": "y"}},
    'no "it.wheels" belongs there, only owner, open': {"wheels": 4},
}


@pytest.mark.parametrize("mistake", REFUSED)
def test_other_values_are_refused_with_their_place(mistake: str) -> None:
    with pytest.raises(TypedError, match=f"^{mistake}"):
        read_as(Basket, {**WHOLE, **REFUSED[mistake]}, "it")


def test_the_first_missing_name_is_told() -> None:
    with pytest.raises(TypedError, match=r'^there is no "it.owner"$'):
        read_as(Basket, {name: value for name, value in WHOLE.items() if name not in ("owner", "sizes")}, "it")


RUN_TIME: dict[str, Any] = {
    "seed": Annotated[int, OneOf((3, 5))],
    "depth": Annotated[Any, OneOf((0.5, 1))],
    "few": Annotated[dict[str, Annotated[list[bool], Sized(2, 2)]], Sized(1)],
}
FIELDS: dict[str, Any] = {"seed": 5, "depth": 1, "few": {"a": [True, False]}}


def test_fields_of_types_that_are_known_at_run_time() -> None:
    assert read_fields(RUN_TIME, FIELDS) == FIELDS


@pytest.mark.parametrize(
    ("changed", "mistake"),
    [
        ({"seed": 4}, "seed must be one of 3, 5, not 4"),
        ({"seed": True}, "seed must be one of 3, 5, not true"),
        ({"seed": 3.0}, "seed must be a whole number, not 3.0"),
        ({"depth": "1"}, 'depth must be one of 0.5, 1, not "1"'),
        ({"few": {}}, "few must be an object with names, not {}"),
        ({"few": {"a": [True]}}, r'few\["a"\] must be a list of 2 values, not \[true\]'),
        ({"few": {"a": [True, 1]}}, r'few\["a"\]\[1\] must be true or false, not 1'),
        ({"more": 1}, 'no "more" belongs there, only seed, depth, few'),
    ],
)
def test_other_fields_are_refused(changed: dict[str, Any], mistake: str) -> None:
    with pytest.raises(TypedError, match=f"^{mistake}$"):
        read_fields(RUN_TIME, {**FIELDS, **changed})


def test_every_field_is_needed() -> None:
    for name in FIELDS:
        with pytest.raises(TypedError, match=f'^there is no "{name}"$'):
            read_fields(RUN_TIME, {other: value for other, value in FIELDS.items() if other != name})


def test_values_are_shown_short() -> None:
    assert shown({"a": [1, None]}) == '{"a": [1, null]}'
    assert len(shown(["x" * 1000])) == 40
    assert shown(object()) == "a value of type object"


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
        assert "it" in refused
        assert len(refused) < 400
        return
    told = json.loads(json.dumps(asdict(found)))[name]
    assert told == (value if name != "fruit" else {key: each for key, each in value.items() if key != "kind"})
