"""Requests as JSON: every refusal names its field, and no JSON gives anything but a request or a refusal."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from winnow.evaluate.sampling import Sampling
from winnow.serve.refusals import LONGEST, Refused
from winnow.serve.response_format import Format
from winnow.serve.wanted import COMMON, HOTTEST, MOST_STOPS, Wanted, read_chat, read_completion

ASKED = {"messages": [{"role": "user", "content": "Who?"}]}
TEXT = {"prompt": "Once"}


def chat(**more):
    return read_chat({**ASKED, **more})


def refusal(read, body):
    with pytest.raises(Refused) as refused:
        read(body)
    assert refused.value.status == 400
    return refused.value


def test_what_is_not_said_is_left_open():
    assert chat() == Wanted(None, chat().messages, "", None, None, None, None, (), False, False)
    assert read_completion(TEXT).text == "Once"
    assert read_completion({"prompt": ["Once"]}).text == "Once"
    assert chat(model=None, seed=None, stop=None, stream=None, tools=None, stream_options=None) == chat()


def test_what_is_said_counts():
    found = chat(
        model="m", max_tokens=3, temperature=0.5, top_p=0.9, seed=-1, stop="x", stream=True,
        stream_options={"include_usage": True},
    )  # fmt: skip
    assert (found.model, found.max_new_tokens, found.stops, found.stream, found.counted) == ("m", 3, ("x",), True, True)
    assert found.sampling(Sampling(1.0, 0.5, 7)) == Sampling(0.5, 0.9, -1)
    assert chat(temperature=0).sampling(Sampling(1.0, 0.5, 7)) == Sampling(0.0, 0.5, 7)
    assert chat(max_tokens=3, max_completion_tokens=4).max_new_tokens == 4
    assert chat(stop=["a", "b"]).stops == ("a", "b")
    assert chat(user="me", metadata={"a": "b"}, store=True, n=1, tools=[], response_format={"type": "text"}) == chat()


def test_nothing_is_asked_for_with_null():
    assert chat(reasoning_effort=None, audio=None, prediction=None, n=None, tool_choice=None) == chat()
    assert chat(parallel_tool_calls=None, stream_options={"include_usage": None}) == chat()
    silent = {**ASKED["messages"][0], "tool_calls": None, "function_call": None, "audio": None, "name": "Bob"}
    answer = {"role": "assistant", "content": "I", "tool_calls": [], "refusal": None, "annotations": []}
    found = read_chat({"messages": [silent, answer, silent]})
    assert [message.content for message in found.messages] == ["Who?", "I", "Who?"]
    assert chat(frequency_penalty=0.0, presence_penalty=0) == chat()


WRONG = [
    ("n", True), ("top_logprobs", False), ("frequency_penalty", False), ("parallel_tool_calls", 1), ("logprobs", 0),
    ("n", 0), ("n", 1.5), ("best_of", 2), ("logprobs", True), ("top_logprobs", 3), ("echo", True), ("suffix", "x"),
    ("frequency_penalty", 0.5), ("presence_penalty", -1), ("logit_bias", {"3": 1}), ("tools", [{}]),
    ("tool_choice", "required"), ("functions", [{}]), ("response_format", {"type": "xml"}),
    ("modalities", ["audio"]), ("reasoning_effort", "low"), ("model", 3), ("max_tokens", 0), ("max_tokens", 1.5),
    ("max_tokens", True), ("max_tokens", 2**63), ("max_completion_tokens", -1), ("temperature", -0.1),
    ("temperature", float("nan")), ("temperature", float("inf")), ("temperature", 10**400), ("temperature", "1"),
    ("temperature", True), ("temperature", HOTTEST * 2), ("top_p", 0), ("top_p", 1.1), ("seed", 0.5),
    ("seed", -(2**63) - 1), ("stop", ""), ("stop", [""]), ("stop", 3), ("stop", [3]), ("stop", {"a": 1}),
    ("stop", ["x"] * (MOST_STOPS + 1)), ("stream", "yes"), ("stream_options", []), ("stream_options", {"more": 1}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), WRONG, ids=str)
def test_a_refusal_names_the_field(name, value):
    found = refusal(read_chat, {**ASKED, name: value})
    assert found.field == name
    assert found.body()["error"]["param"] == name
    assert str(found).startswith(name)
    if name != "max_completion_tokens":
        assert refusal(read_completion, {**TEXT, name: value}).field == name


def test_usage_that_is_neither_true_nor_false():
    assert refusal(read_chat, {**ASKED, "stream_options": {"include_usage": 1}}).field == "include_usage"


CALL = {"id": "1", "type": "function", "function": {"name": "a", "arguments": '{"x": 1}'}}


def called(call):
    return {"role": "assistant", "content": None, "tool_calls": [call]}


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        (None, "list of messages"),
        ([], "list of messages"),
        ("Who?", "list of messages"),
        (["Who?"], r"messages\[0\] must be an object"),
        (
            [{"content": "Who?"}],
            r"messages\[0\]\.role must be one of system, developer, user, assistant, tool; it is None",
        ),
        ([{"role": ["user"], "content": "Who?"}], r"messages\[0\]\.role"),
        ([{"role": "function", "content": "x"}, *ASKED["messages"]], r"messages\[0\]\.role"),
        ([{"role": "user"}], r"messages\[0\]\.content"),
        ([*ASKED["messages"], {"role": "user", "content": 3}], r"messages\[1\]\.content"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "no images"),
        ([{"role": "user", "content": [{"type": "text", "text": None}]}], "no images"),
        ([{"role": "user", "content": ["Who?"]}], "no images"),
        ([{"role": "user", "content": "\ud800"}], r"half of a character, '\\ud800'"),
        ([*ASKED["messages"], {"role": "assistant", "content": "I"}], "last message must be the user's or a tool's"),
        ([{"role": "assistant", "content": "I", "function_call": {"name": "x"}}], r"messages\[0\]\.function_call"),
        ([{"role": "assistant", "content": "I", "audio": {"id": "1"}}], r"messages\[0\]\.audio"),
        ([{"role": "user", "content": "I", "tool_calls": [CALL]}], r"messages\[0\]\.tool_calls .* message of user"),
        ([{"role": "assistant", "content": None, "tool_calls": []}], r"messages\[0\]\.content"),
        ([called(3)], r"tool_calls\[0\] must be"),
        ([{"role": "assistant", "tool_calls": "x"}], r"messages\[0\]\.tool_calls must be a list"),
        ([called({"id": "1"})], r"tool_calls\[0\] must be"),
        ([called({**CALL, "type": "custom"})], r"tool_calls\[0\] must be"),
        ([called({**CALL, "id": ""})], "must have an id"),
        ([called({**CALL, "id": 3})], "must have an id"),
        ([called({**CALL, "id": "\ud800"})], "half of a character"),
        ([called({**CALL, "function": {"arguments": "{}"}})], "its function a name"),
        *(
            (
                [called({**CALL, "function": {"name": "a", "arguments": arguments}})],
                "must be a text that is a JSON object",
            )
            for arguments in (None, {}, "", "[1]", "{", '"a"', "{" * 10**5)
        ),
        ([called({**CALL, "function": {"name": "a", "arguments": '{"x": "\\ud800"}'}})], "half of a character"),
        ([{"role": "tool", "content": "x"}], r"messages\[0\]\.tool_call_id .* it is None"),
        ([called(CALL), {"role": "tool", "content": "x", "tool_call_id": "2"}], r"messages\[1\]\.tool_call_id .* '2'"),
        ([{"role": "tool", "content": "x", "tool_call_id": "1"}, called(CALL)], r"messages\[0\]\.tool_call_id"),
        ([called(CALL), {"role": "tool", "tool_call_id": "1"}], r"messages\[1\]\.content"),
        ([*ASKED["messages"], called(CALL)], "last message must be"),
    ],
)
def test_messages_that_are_none(messages, said):
    found = refusal(read_chat, {"messages": messages})
    assert found.field == "messages"
    assert re.search(said, str(found))


@pytest.mark.parametrize("prompt", [None, "", 3, [], ["a", "b"], [1, 2], [[1, 2]], {"a": "b"}, "a\udfff"])
def test_prompts_that_are_none(prompt):
    assert refusal(read_completion, {"prompt": prompt}).field == "prompt"


@pytest.mark.parametrize("body", [None, 3, "x", [], [ASKED], True])
def test_what_is_no_object(body):
    assert refusal(read_chat, body).field is None
    assert refusal(read_completion, body).field is None


def test_fields_of_the_other_address_are_refused():
    assert refusal(read_chat, {**ASKED, "prompt": "x"}).field == "prompt"
    assert refusal(read_completion, {**TEXT, "messages": []}).field == "messages"
    assert refusal(read_completion, {**TEXT, "max_completion_tokens": 3}).field == "max_completion_tokens"


def test_parts_of_text_are_lines():
    parts = [{"type": "text", "text": "Who?"}, {"type": "text", "text": "When?"}]
    (message,) = read_chat({"messages": [{"role": "user", "content": parts}]}).messages
    assert message.content == "Who?\nWhen?"
    (message,) = read_chat({"messages": [{"role": "user", "content": []}]}).messages
    assert message.content == ""


def test_calls_and_their_results():
    both = {**called(CALL), "content": "I look.", "tool_calls": [CALL, {**CALL, "id": "2", "type": "function"}]}
    said = [
        both,
        *({"role": "tool", "tool_call_id": each, "content": [{"type": "text", "text": "3"}]} for each in "21"),
    ]
    first, *results = read_chat({"messages": said}).messages
    assert (first.content, [call.id for call in first.calls]) == ("I look.", ["1", "2"])
    assert [(call.name, call.arguments) for call in first.calls] == [("a", {"x": 1})] * 2
    assert [(each.role, each.content, each.answers) for each in results] == [
        ("tool", "3", first.calls[1]),
        ("tool", "3", first.calls[0]),
    ]
    assert all(each.of_tools for each in (first, *results))
    (silent, _) = read_chat({"messages": [called(CALL), *ASKED["messages"]]}).messages
    assert silent.content == ""
    assert not chat().messages[0].of_tools


def test_answers_to_one_prompt():
    assert [read(body).answers for read, body in ((read_chat, ASKED), (read_completion, TEXT))] == [1, 1]
    assert [read({**body, "n": 3}).answers for read, body in ((read_chat, ASKED), (read_completion, TEXT))] == [3, 3]


TOOL = {"type": "function", "function": {"name": "a", "description": "A.", "parameters": {"type": "object"}}}


def test_tools_are_read():
    assert chat(tools=[TOOL]).tools == (TOOL,)
    # Templates take for granted what OpenAI does not.
    (bare,) = chat(tools=[{"type": "function", "function": {"name": "b", "strict": False, "more": 1}}]).tools
    assert bare["function"] == {
        "name": "b",
        "description": "",
        "parameters": {"type": "object", "properties": {}},
        "more": 1,
    }
    assert chat(tools=[TOOL], tool_choice="auto", parallel_tool_calls=True) == chat(tools=[TOOL])
    assert chat(tools=[TOOL], parallel_tool_calls=False).one_call
    assert chat(tools=[TOOL], tool_choice="none") == chat(tool_choice="none") == chat()


@pytest.mark.parametrize(
    "tool",
    [
        3,
        {},
        {"type": "custom", "custom": {"name": "a"}},
        {"function": {"name": "a"}},
        {"type": "function", "function": "a"},
        {"type": "function", "function": {}},
        {"type": "function", "function": {"name": "a b"}},
        {"type": "function", "function": {"name": "a" * 65}},
        {"type": "function", "function": {"name": "a\n"}},
        {"type": "function", "function": {"name": "a", "description": 3}},
        {"type": "function", "function": {"name": "a", "description": "\ud800"}},
        {"type": "function", "function": {"name": "a", "parameters": []}},
        {"type": "function", "function": {"name": "a", "parameters": {"x": "\ud800"}}},
        {"type": "function", "function": {"name": "a", "strict": 1}},
        {"type": "function", "function": {"name": "a", "strict": True, "parameters": {"type": "string"}}},
    ],
)
def test_tools_that_are_none(tool):
    for more in ({}, {"tool_choice": "none"}):
        assert refusal(read_chat, {**ASKED, "tools": [TOOL, tool], **more}).field == "tools"


def test_tools_that_no_template_could_write():
    deep: object = {}
    for _ in range(10**4):
        deep = {"x": deep}
    tool = {"type": "function", "function": {"name": "a", "parameters": deep}}
    assert "too deeply" in str(refusal(read_chat, {**ASKED, "tools": [tool]}))


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        *((choice, "must be auto, none, required") for choice in ("", "any", 3, [], {}, {"type": "allowed_tools"})),
        ({"type": "function", "function": "a"}, "must be auto, none, required"),
        ({"type": "function", "function": {"name": 3}}, "must be auto, none, required"),
        ({"type": "function", "function": {"name": "b"}}, "names none of the tools"),
    ],
)
def test_choices_of_tools_that_are_none(choice, said):
    found = refusal(read_chat, {**ASKED, "tools": [TOOL], "tool_choice": choice})
    assert (found.field, said in str(found)) == ("tool_choice", True)
    assert refusal(read_chat, {**ASKED, "tool_choice": choice}).field == "tool_choice"


def test_calls_that_are_forced():
    two = [TOOL, {"type": "function", "function": {"name": "b", "strict": True, "parameters": None}}]
    free, every = chat(tools=two), chat(tools=two, tool_choice="required")
    assert (free.forced, free.strict, free.one_call) == (frozenset(), {"b"}, False)
    assert (every.forced, every.strict, every.one_call) == ({"a", "b"}, {"b"}, False)
    assert chat(tools=two, tool_choice="required", parallel_tool_calls=False).one_call
    one = chat(tools=two, tool_choice={"type": "function", "function": {"name": "a"}})
    assert (one.forced, one.tools, one.one_call) == ({"a"}, every.tools, True)
    assert chat(tools=two, tool_choice="none") == chat()
    # Templates write what the function is, and not how it is to be called.
    assert "strict" not in every.tools[1]["function"]


def test_forms_of_answers():
    assert chat(response_format={"type": "json_object"}).format == Format({"type": "object"}, "response_format")
    schema = {"type": "array"}
    for more in ({}, {"strict": True}, {"strict": False, "description": "It."}, {"strict": None}):
        form = {"type": "json_schema", "json_schema": {"name": "it", "schema": schema, **more}}
        assert chat(response_format=form).format == Format(schema, "response_format.json_schema.schema")
    assert chat(response_format={"type": "text", "json_schema": None}) == chat(response_format=None) == chat()


DEEP: dict[str, object] = {}
for _ in range(10**4):
    DEEP = {"items": DEEP}


@pytest.mark.parametrize(
    ("form", "place"),
    [
        ("json_object", ""),
        ({}, ""),
        ({"type": None}, ""),
        ({"type": ["text"]}, ""),
        ({"type": "text", "schema": {}}, ".schema"),
        ({"type": "json_object", "schema": {}}, ".schema"),
        ({"type": "json_schema"}, ".json_schema"),
        ({"type": "json_schema", "json_schema": []}, ".json_schema"),
        *(
            ({"type": "json_schema", "json_schema": {"name": "it", "schema": {}, **more}}, f".json_schema.{place}")
            for place, more in (
                ("name", {"name": None}),
                ("name", {"name": "a b"}),
                ("schema", {"schema": None}),
                ("schema", {"schema": True}),
                ("schema", {"schema": "{}"}),
                ("schema", {"schema": DEEP}),
                ("strict", {"strict": "yes"}),
                ("description", {"description": 3}),
                ("more", {"more": 1}),
            )
        ),
    ],
    ids=lambda each: each if isinstance(each, str) else "form",
)
def test_forms_of_answers_that_are_none(form, place):
    assert refusal(read_chat, {**ASKED, "response_format": form}).field == f"response_format{place}"
    assert refusal(read_completion, {**TEXT, "response_format": form}).field == "response_format"


def test_a_text_that_goes_on_has_no_form():
    for form in ({"type": "json_object"}, {"type": "json_schema", "json_schema": {"name": "it", "schema": {}}}):
        assert refusal(read_completion, {**TEXT, "response_format": form}).field == "response_format"
    assert read_completion({**TEXT, "response_format": {"type": "text"}}) == read_completion(TEXT)


def test_texts_that_go_on_have_no_tools():
    assert refusal(read_completion, {**TEXT, "tools": [TOOL]}).field == "tools"
    assert refusal(read_completion, {**TEXT, "tool_choice": "required"}).field == "tool_choice"
    assert read_completion({**TEXT, "tools": [], "tool_choice": "auto", "parallel_tool_calls": False}).tools == ()


def test_a_developer_is_a_system():
    said = [{"role": "developer", "content": "Be brief."}, *ASKED["messages"]]
    assert [each.role for each in read_chat({"messages": said}).messages] == ["system", "user"]


def test_what_is_repeated_of_a_request_is_short():
    deep: list[object] = []
    for _ in range(3000):
        deep = [deep]
    for body in ({**ASKED, "n": "x" * 10**6}, {**ASKED, "tools": deep}, {**ASKED, "x" * 10**6: 1}):
        told = refusal(read_chat, body).body()["error"]
        assert len(told["message"]) <= LONGEST + 1
        assert len(told["param"]) <= LONGEST + 1


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.characters(categories=["Cs"]),
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(st.text(max_size=5), inside, max_size=3),
    max_leaves=6,
)
CALLS = st.lists(
    st.fixed_dictionaries(
        {"id": st.sampled_from("12")},
        optional={"function": st.fixed_dictionaries({"name": st.text() | JSON, "arguments": JSON | JSON.map(str)})},
    )
    | JSON,
    max_size=2,
)
NAMES = st.sampled_from([*sorted(COMMON), "messages", "prompt", "max_completion_tokens"]) | st.text(max_size=3)
ROLES = st.sampled_from(["user", "system", "assistant", "tool", "x"]) | JSON
MESSAGE = st.fixed_dictionaries(
    {},
    optional={"role": ROLES, "content": JSON, "tool_calls": CALLS | JSON, "tool_call_id": JSON | st.sampled_from("12")},
)
BODIES = JSON | st.tuples(
    st.dictionaries(NAMES, JSON, max_size=3),
    st.fixed_dictionaries({}, optional={"messages": st.lists(MESSAGE, max_size=3), "prompt": JSON}),
).map(lambda both: {**both[0], **both[1]})


@given(BODIES)
def test_any_json_is_a_request_or_refused(body):
    for read in (read_chat, read_completion):
        try:
            found = read(body)
        except Refused as refused:
            # It can be told, whatever it repeats.
            json.dumps(refused.body(), ensure_ascii=False).encode("utf-8")
        else:
            assert isinstance(found, Wanted)


def test_the_largest_and_the_least_that_may_be_asked_for():
    found = chat(temperature=HOTTEST, top_p=1, seed=-(2**63), max_tokens=2**63 - 1, stop=["x"] * MOST_STOPS)
    assert (found.temperature, found.top_p, found.seed) == (HOTTEST, 1.0, -(2**63))
    assert (found.max_new_tokens, len(found.stops)) == (2**63 - 1, MOST_STOPS)


def test_a_text_beside_what_is_none_is_refused():
    """An answer that ignores the picture would be an answer to another question."""
    content = [{"type": "text", "text": "Who?"}, {"type": "image_url", "image_url": {"url": "data:"}}]
    found = refusal(read_chat, {"messages": [{"role": "user", "content": content}]})
    assert (found.field, "no images" in str(found)) == ("messages", True)


@pytest.mark.parametrize(
    ("name", "value"), [("n", 0), ("parallel_tool_calls", 0), ("tool_choice", ""), ("logit_bias", [])]
)
def test_what_is_nothing_but_not_neutral_is_refused(name, value):
    assert refusal(read_chat, {**ASKED, name: value}).field == name


def test_a_seed_of_zero_is_a_seed():
    assert chat(seed=0).sampling(Sampling(1.0, 0.5, 7)).seed == 0


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, "invalid_request_error"), (499, "invalid_request_error"), (500, "server_error"), (503, "server_error")],
)
def test_errors_say_whose_they_are(status, kind):
    assert Refused("x", status=status).body()["error"]["type"] == kind
