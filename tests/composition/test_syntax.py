"""Composed names: quoted texts, and what is none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.head_scores import table
from winnow.composition.names import method
from winnow.composition.syntax import format_call, parse, parse_setting, split_list
from winnow.errors import MethodError
from winnow.runs.rows import method_and_budget

TEXTS = st.text(st.characters(blacklist_categories=["Cs", "Cc"]), min_size=1)


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
    assert parse("headkv(scores='it''s \"(1)\".st')").calls[0].named == {"scores": 'it\'s "(1)".st'}


def test_an_apostrophe_inside_a_name_opens_no_quotes() -> None:
    found = parse("headkv(scores=bob's.st)+bits(scores=bob's.st) @ 5%")
    assert [(call.name, call.named) for call in found.calls] == [
        ("headkv", {"scores": "bob's.st"}),
        ("bits", {"scores": "bob's.st"}),
    ]


def test_many_quotes_without_an_end_are_refused_at_once() -> None:
    with pytest.raises(MethodError, match="Cannot read the method"):
        parse("headkv(" + "'a'," * 1000 + "(")


@pytest.mark.parametrize("stem", ["me@lab", "run (1)", "a, b=c", 'it\'s "here" @ 5%', " begins", "plain"])
def test_a_method_with_a_table_of_any_name_is_read_from_its_text(stem: str, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    name = str(table().save(f"{stem}.safetensors"))
    made = method("cokv", 64, scores=name)
    assert method(str(made)) == made
    assert method_and_budget(str(made)) == (made.name, "64")
    assert split_list(f"full,{made},snapkv") == ["full", str(made), "snapkv"]


def test_a_name_between_quotes_is_no_budget() -> None:
    text = "duoattention(scores='a @ b.st')"
    assert method_and_budget(text) == (text, "")


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
