"""Composed names: quoted texts, and what is none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from winnow.composition.names import method
from winnow.composition.syntax import format_call, parse, parse_setting, split_list
from winnow.errors import MethodError

TEXTS = st.text(st.characters(blacklist_categories=["Cs", "Cc"]), min_size=1).filter(lambda text: "'" not in text)


@given(
    texts=st.lists(TEXTS | st.integers() | st.booleans(), min_size=1, max_size=3), budget=st.sampled_from(["", " @ 5%"])
)
def test_what_is_written_is_read(texts: list[str | int | bool], budget: str) -> None:
    named = {f"file{number}": text for number, text in enumerate(texts)}
    written = f"{format_call('headkv', named)}+{format_call('bits', named)}{budget}"
    found = parse(written)
    assert [(call.name, call.named) for call in found.calls] == [("headkv", named), ("bits", named)]
    assert found.budget == (budget[3:] or None)
    assert split_list(f"full, {written},snapkv(window=16, kernel=5)") == [
        "full",
        written,
        "snapkv(window=16, kernel=5)",
    ]


def test_names_of_files() -> None:
    (call,) = parse("headkv(scores='me@lab, it (1).st', beta=2) @ 5%").calls
    assert call.named == {"scores": "me@lab, it (1).st", "beta": 2}
    (call,) = parse("headkv(scores=it's=here.st)").calls
    assert call.named == {"scores": "it's=here.st"}
    assert format_call("headkv", {"scores": "it's (1).st"}) == """headkv(scores="it's (1).st")"""
    assert parse_setting("scores='a,b.st'") == ("scores", "a,b.st")


@pytest.mark.parametrize(
    ("text", "parameters", "error", "message"),
    [
        ("snapkv(window=16, window=8)", {}, MethodError, "twice"),
        ("snapkv(window=)", {}, MethodError, "argument 'window='"),
        ("snapkv(window=3, 4)", {}, MethodError, "argument '4'"),
        ("snapkv(16", {}, MethodError, "Cannot read"),
        ("snapkv++ada", {}, MethodError, "Cannot read"),
        ("", {}, MethodError, "Cannot read"),
    ],
)
def test_errors(text: str, parameters: dict[str, object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        method(text, 64, **parameters)  # type: ignore[arg-type]
