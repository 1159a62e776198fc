"""JSON of others: whatever is wrong with it is one line."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from winnow.errors import JsonError
from winnow.strict_json import DEEPEST, parse, parse_lines, parse_object

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda parts: st.lists(parts) | st.dictionaries(st.text(), parts),
)


@given(values)
def test_good_json_is_read(value):
    assert parse(json.dumps(value)) == value
    assert parse(json.dumps(value, ensure_ascii=False)) == value


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not JSON (Expecting value at column 1)"),
        ('{\n"a": }', "not JSON (Expecting value at line 2, column 6)"),
        ("NaN", "NaN, which is no JSON"),
        ("[-Infinity]", "-Infinity, which is no JSON"),
        ("[1e999]", "the number 1e999, which is too large"),
        ("-1" + "0" * 400 + ".0", "which is too large"),
        ("9" * 5000, "a number of too many digits"),
        ('{"a": 1, "b": 2, "a": 3}', "the key 'a' twice in one object"),
        ('["\\ud800"]', "half a surrogate pair"),
        ('{"\\uDFFF": 1}', "half a surrogate pair"),
        ("[" * (DEEPEST + 1) + "]" * (DEEPEST + 1), "nested deeper than"),
        ("[" * 100_000, "nested deeper than"),
        ('{"a":' * 100_000, "nested deeper than"),
    ],
)
def test_what_is_wrong_is_said(text, said):
    with pytest.raises(JsonError) as caught:
        parse(text)
    assert said in str(caught.value)
    assert len(str(caught.value)) < 120
    assert "\n" not in str(caught.value)


def test_the_deepest_and_escaped_pairs():
    parse("[" * DEEPEST + "]" * DEEPEST)
    assert parse('"\\ud83d\\ude00 \\\\ud800"') == "😀 \\ud800"


@pytest.mark.parametrize("value", [None, True, 1, 1.5, "text", [1]])
def test_what_is_no_object(value):
    with pytest.raises(JsonError, match="not a JSON object, but "):
        parse_object(json.dumps(value))


def test_lines_are_numbered_and_divided_at_line_feeds_only():
    text = '{"a": "x\u2028y"}\r\n\n  \n{"a": "\x85"}'
    assert list(parse_lines(text)) == [(1, {"a": "x\u2028y"}), (4, {"a": "\x85"})]
    with pytest.raises(JsonError, match=r"^line 3: not JSON \(Expecting value at column 1\)$"):
        list(parse_lines("{}\n\noops\n{}"))
    with pytest.raises(JsonError, match=r"^line 2: not a JSON object, but a list$"):
        list(parse_lines("{}\n[]"))
