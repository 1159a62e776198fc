"""Tools over HTTP: what a model says is scripted, all else is as it is."""

from __future__ import annotations

import json

import pytest
from starlette.testclient import TestClient
from tokenizers import AddedToken

from support.serving import beginning, small
from support.sites import CHAT, answered, refused, streamed
from support.tools import DECLARED, END, HERMES, LLAMA, PLAIN, RESPONSES, TOOL, asked_with_tools, call_text, speller
from winnow.evaluate.sampling import Sampling
from winnow.models import ModelSource
from winnow.serve.application import Settings, application
from winnow.serve.engine import Engine, Limits
from winnow.serve.heard import Heard

pytestmark = pytest.mark.usefixtures("one_thread")

BARE = '{"name": "weather", "parameters": {"city": "Rome"}}'


@pytest.fixture
def said(monkeypatch):
    """Answers that the model will say, one by one, whatever it thinks."""
    answers = []

    def choice(sampling):
        tokens = iter(answers.pop(0))
        return lambda logits: next(tokens)

    monkeypatch.setattr(Sampling, "choice", choice)
    return answers


@pytest.fixture
def site_of(source, said):
    """Makes clients of a server whose tokenizer has a template; and says what is to be said."""
    engines = []

    def make(template=HERMES, responses=None, end=END, **limits):
        """end: a token that ends answers, and is marked as special only if it is END."""
        tokenizer = speller(template, responses)
        if end != END:
            tokenizer.add_tokens([AddedToken(end, special=False)])
        own, model = small(source, vocab_size=len(tokenizer), max_position_embeddings=4096)
        model.generation_config.eos_token_id = [tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids(end)]
        own = ModelSource("spelled", own.config, tokenizer)
        engines.append(Engine(own, model, Limits(**limits)))
        client = TestClient(application(engines[-1], tokenizer, [beginning(model)], Settings()))

        def says(*texts):
            said.extend(tokenizer(f"{text}{end}", add_special_tokens=False).input_ids for text in texts)

        return client, says

    yield make
    for engine in engines:
        assert engine.close()


def functions(calls):
    return [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls]


@pytest.mark.parametrize(
    ("template", "responses", "text"),
    [(HERMES, None, call_text()), (LLAMA, None, BARE), (DECLARED, RESPONSES, "<|call|>weather city=Rome<|called|>")],
    ids=["hermes", "llama", "declared"],
)
def test_a_call(template, responses, text, site_of):
    client, says = site_of(template, responses)
    says(text, text)
    body = answered(client, **asked_with_tools())
    (choice,) = body["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    (call,) = choice["message"]["tool_calls"]
    assert call.keys() == {"id", "type", "function"}
    assert call["type"] == "function"
    assert functions([call]) == [("weather", {"city": "Rome"})]
    # Special tokens count, the one that ends an answer does not.
    assert body["usage"]["completion_tokens"] == len(speller()(text).input_ids)
    pieces = streamed(client, **asked_with_tools())
    assert pieces[0]["delta"] == {"role": "assistant", "content": None}
    (told,) = [piece["delta"]["tool_calls"] for piece in pieces if "tool_calls" in piece["delta"]]
    assert told[0].pop("index") == 0
    assert functions(told) == [("weather", {"city": "Rome"})]
    assert [piece["finish_reason"] for piece in pieces] == [None, None, "tool_calls"]


def test_the_token_that_ends_an_answer_may_end_a_call(site_of):
    """As response templates for Llama 3 have it."""
    calls = {
        "open_pattern": r'\{"name":\s*"(?P<name>\w+)",\s*"parameters":\s*',
        "close_pattern": r"\}<\|im_end\|>",
        "repeats": True,
        "content": "json",
        "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}},
    }
    client, says = site_of(LLAMA, {"start_anchor": "assistant", "fields": {"tool_calls": calls}})
    says(BARE)
    (choice,) = answered(client, **asked_with_tools())["choices"]
    assert functions(choice["message"]["tool_calls"]) == [("weather", {"city": "Rome"})]
    assert choice["message"]["content"] is None


def test_text_and_two_calls(site_of):
    client, says = site_of()
    text = f"I look.\n{call_text()}\n{call_text('Oslo')}"
    says(text, text, text)
    (choice,) = answered(client, **asked_with_tools())["choices"]
    assert choice["message"]["content"] == "I look."
    assert functions(choice["message"]["tool_calls"]) == [("weather", {"city": "Rome"}), ("weather", {"city": "Oslo"})]
    pieces = streamed(client, **asked_with_tools())
    assert "".join(piece["delta"].get("content") or "" for piece in pieces) == "I look."
    calls = [call for piece in pieces for call in piece["delta"].get("tool_calls", [])]
    assert [call["index"] for call in calls] == [0, 1]
    assert functions(calls) == functions(choice["message"]["tool_calls"])
    (choice,) = answered(client, **asked_with_tools(parallel_tool_calls=False))["choices"]
    assert functions(choice["message"]["tool_calls"]) == [("weather", {"city": "Rome"})]


def test_what_does_not_parse_stays_text(site_of):
    client, says = site_of()
    broken = '<tool_call>\n{"name": "weather", "arguments": {"city": }\n</tool_call>'
    says(broken, broken, f"It is < 3.{call_text()[:30]}")
    (choice,) = answered(client, **asked_with_tools())["choices"]
    assert choice["message"] == {"role": "assistant", "content": broken}
    assert choice["finish_reason"] == "stop"
    pieces = streamed(client, **asked_with_tools())
    assert "".join(piece["delta"].get("content") or "" for piece in pieces) == broken
    assert pieces[-1]["finish_reason"] == "stop"
    (choice,) = answered(client, **asked_with_tools(max_tokens=20))["choices"]
    assert choice["message"]["content"] == f"It is < 3.{call_text()[:10]}".strip()
    assert choice["finish_reason"] == "length"


def test_an_answer_of_words(site_of):
    client, says = site_of()
    says(" It is hot. ", " It is hot. ")
    (choice,) = answered(client, **asked_with_tools())["choices"]
    assert choice["message"] == {"role": "assistant", "content": "It is hot."}
    pieces = streamed(client, **asked_with_tools())
    # Letter by letter: nothing is held back that cannot begin a call, but for space at the end.
    assert [piece["delta"].get("content") for piece in pieces[1:4]] == ["I", "t", " i"]
    assert pieces[-1]["finish_reason"] == "stop"


@pytest.mark.parametrize("stop", ["|", "<", ">", "im", END, ">>>"])
def test_a_stop_text_is_not_found_in_special_tokens(stop, site_of):
    """Nor in the one that ends the answer, which is held as others are."""
    client, says = site_of()
    says("It is hot.", "Yes.")
    first = answered(client, **asked_with_tools(stop=[stop]))
    (choice,) = first["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("It is hot.", "stop")
    more = [*asked_with_tools()["messages"], choice["message"], {"role": "user", "content": "Really?"}]
    second = answered(client, **asked_with_tools(messages=more))
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] > first["usage"]["prompt_tokens"]


def test_a_stop_text_is_found_before_a_special_token(site_of):
    client, says = site_of(DECLARED, RESPONSES)
    own = "<|call|>weather city=Rome<|called|>"
    says(f"A st{own}op st", f"A stop {own}")
    (choice,) = answered(client, **asked_with_tools(stop=["stop"]))["choices"]
    assert choice["message"]["content"] == "A stop st"
    assert functions(choice["message"]["tool_calls"]) == [("weather", {"city": "Rome"})]
    (choice,) = answered(client, **asked_with_tools(stop=["stop"]))["choices"]
    assert (choice["message"], choice["finish_reason"]) == ({"role": "assistant", "content": "A"}, "stop")


@pytest.mark.parametrize(
    ("cut", "reason"), [({"max_tokens": 20}, "length"), ({"stop": ["ü"]}, "stop"), ({"stop": ["city"]}, "stop")]
)
def test_a_call_that_was_cut_off_is_text(cut, reason, site_of):
    client, says = site_of(DECLARED, RESPONSES)
    text = "<|call|>weather city=Zürich"
    says(text, text, text)
    (choice,) = answered(client, **asked_with_tools(**cut))["choices"]
    assert choice["message"].keys() == {"role", "content"}
    assert "weather city=Zürich".startswith(choice["message"]["content"])
    assert choice["finish_reason"] == reason
    pieces = streamed(client, **asked_with_tools(**cut))
    assert "".join(piece["delta"].get("content") or "" for piece in pieces) == choice["message"]["content"]
    assert pieces[-1]["finish_reason"] == reason
    # A token that ends the answer ends the call, too.
    (choice,) = answered(client, **asked_with_tools())["choices"]
    assert functions(choice["message"]["tool_calls"]) == [("weather", {"city": "Zürich"})]


@pytest.mark.parametrize(
    "text", ["It is hot.", call_text(), call_text().removesuffix("\n</tool_call>"), f"A {END[:3]}"]
)
def test_a_token_that_ends_an_answer_is_no_word(text, site_of):
    """Some tokenizers do not mark it as a special one."""
    client, says = site_of(end="<end_of_turn>")
    says(text, text)
    (choice,) = answered(client, **asked_with_tools())["choices"]
    assert choice["message"]["content"] == (None if "tool_call" in text else text)
    assert ("tool_calls" in choice["message"]) == ("tool_call" in text)
    pieces = streamed(client, **asked_with_tools())
    assert "".join(piece["delta"].get("content") or "" for piece in pieces) == (choice["message"]["content"] or "")


def test_special_tokens_that_are_spelled_out_are_words(site_of, said):
    client, _ = site_of()
    text = f"Write <|im_start|> or {END}"
    tokenizer = speller()
    said.append([token for letter in text for token in tokenizer(letter).input_ids] + [tokenizer.eos_token_id])
    assert answered(client, **asked_with_tools())["choices"][0]["message"]["content"] == text


def test_odd_schemas_do_not_break_an_answer(site_of):
    client, says = site_of(DECLARED, RESPONSES)
    text = "So: <|call|>weather city=Rome<|called|>."
    says(text, text)
    odd = {"type": "function", "function": {"name": "weather", "parameters": {"properties": {"city": {"anyOf": 5}}}}}
    (choice,) = answered(client, **asked_with_tools(tools=[odd]))["choices"]
    assert choice["message"]["content"] == "So: weather city=Rome."
    pieces = streamed(client, **asked_with_tools(tools=[odd]))
    assert "".join(piece["delta"].get("content") or "" for piece in pieces) == "So: weather city=Rome."


def test_what_nobody_thought_of_ends_a_stream_with_an_error(site_of, monkeypatch):
    def broken(heard, text, special=False):
        raise OSError("so it goes")

    client, says = site_of()
    says("It is hot.")
    monkeypatch.setattr(Heard, "add", broken)
    response = client.post(CHAT, json=asked_with_tools(stream=True))
    *_, error, done, _ = response.text.split("\n\n")
    assert done == "data: [DONE]"
    assert json.loads(error.removeprefix("data: "))["error"]["message"] == "unexpected error, OSError: so it goes"


def test_calls_are_text_where_there_are_no_tools_to_call(site_of):
    client, says = site_of()
    says(call_text(), call_text())
    for more in ({"tools": []}, {"tool_choice": "none"}):
        (choice,) = answered(client, **asked_with_tools(**more))["choices"]
        assert choice["message"] == {"role": "assistant", "content": call_text()}
        assert choice["finish_reason"] == "stop"


def test_several_answers_with_calls(site_of):
    client, says = site_of()
    texts = [call_text(), "Warm.", f"So: {call_text('Oslo')}"]
    says(*texts, *texts)
    choices = answered(client, **asked_with_tools(n=3))["choices"]
    assert [choice["index"] for choice in choices] == [0, 1, 2]
    assert [choice["finish_reason"] for choice in choices] == ["tool_calls", "stop", "tool_calls"]
    assert [choice["message"]["content"] for choice in choices] == [None, "Warm.", "So:"]
    pieces = streamed(client, **asked_with_tools(n=3))
    assert [piece["index"] for piece in pieces[:3]] == [0, 1, 2]
    for choice in choices:
        own = [piece for piece in pieces if piece["index"] == choice["index"]]
        assert "".join(piece["delta"].get("content") or "" for piece in own) == (choice["message"]["content"] or "")
        calls = [call for piece in own for call in piece["delta"].get("tool_calls", [])]
        assert functions(calls) == functions(choice["message"].get("tool_calls", []))
        assert own[-1]["finish_reason"] == choice["finish_reason"]


def next_turn(message, *results):
    """The conversation with an answer that is a call, and with its results."""
    calls = message["tool_calls"]
    told = [
        {"role": "tool", "tool_call_id": call["id"], "content": result}
        for call, result in zip(calls, results, strict=True)
    ]
    return asked_with_tools(messages=[*asked_with_tools()["messages"], message, *told])


@pytest.mark.parametrize(
    ("template", "responses", "text", "goes_on"),
    [
        (HERMES, None, call_text(), True),
        (HERMES, None, f"I look.\n{call_text()}", True),
        (HERMES, None, f"I look.\n{call_text()}\n{call_text('Oslo')}", True),
        # The template closes it.
        (HERMES, None, call_text().removesuffix("\n</tool_call>"), True),
        # A template writes these in another way.
        (HERMES, None, call_text().replace(": ", ":"), False),
        (HERMES, None, f" {call_text()}", False),
        (HERMES, None, f"{call_text()} Wait.", False),
        (LLAMA, None, BARE, True),
        (LLAMA, None, BARE.replace("parameters", "arguments"), False),
        (DECLARED, RESPONSES, "<|call|>weather city=Rome<|called|>", True),
        (DECLARED, RESPONSES, "<|call|>weather  city=Rome<|called|>", False),
    ],
)
def test_a_conversation_goes_on_behind_a_call(template, responses, text, goes_on, site_of):
    """If the template writes what was said; else all is read again, and the answer is to what the client sent."""
    client, says = site_of(template, responses)
    says(text, "It is 21.")
    first = answered(client, **asked_with_tools())
    message = first["choices"][0]["message"]
    asked = next_turn(message, *["21"] * len(message["tool_calls"]))
    second = answered(client, **asked)
    assert second["choices"][0]["message"]["content"] == "It is 21."
    held = second["usage"]["prompt_tokens_details"]["cached_tokens"]
    said = len(speller()(text).input_ids)
    assert held == (first["usage"]["prompt_tokens"] + said if goes_on else 0)
    assert second["usage"]["prompt_tokens"] > first["usage"]["prompt_tokens"] + said


def test_what_goes_on_is_answered_as_if_it_was_read(site_of, monkeypatch):
    """The logits behind a conversation with a call are those of the whole prompt."""
    found = []
    client, says = site_of()
    says(call_text())
    message = answered(client, **asked_with_tools())["choices"][0]["message"]
    monkeypatch.setattr(Sampling, "choice", lambda sampling: lambda logits: found.append(logits) or 0)
    asked = {**next_turn(message, "21"), "max_tokens": 1}
    counts = [answered(client, **asked)["usage"]["prompt_tokens_details"]["cached_tokens"]]
    other, _ = site_of(conversations=0)
    monkeypatch.setattr(Sampling, "choice", lambda sampling: lambda logits: found.append(logits) or 0)
    counts.append(answered(other, **asked)["usage"]["prompt_tokens_details"]["cached_tokens"])
    assert counts[0] > 0 == counts[1]
    assert (found[0] - found[1]).abs().max() < 1e-3


def test_other_tools_are_another_conversation(site_of):
    client, says = site_of()
    says(call_text(), "21.")
    message = answered(client, **asked_with_tools())["choices"][0]["message"]
    other = {"type": "function", "function": {**TOOL["function"], "name": "climate"}}
    body = answered(client, **{**next_turn(message, "21"), "tools": [TOOL, other]})
    assert body["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


def test_requests_that_are_refused(site_of):
    client, _ = site_of(PLAIN)
    assert refused(client, **asked_with_tools())["param"] == "tools"
    client, _ = site_of(rows=2)
    assert refused(client, **asked_with_tools(tool_choice="any"))["param"] == "tool_choice"
    assert refused(client, **asked_with_tools(n=3))["param"] == "n"
    error = refused(client, messages=[{"role": "tool", "tool_call_id": "x", "content": "21"}], tools=[TOOL])
    assert "tool_call_id" in error["message"]


def test_the_official_client(site_of):
    """If it is installed: it is no dependency."""
    openai = pytest.importorskip("openai")
    client, says = site_of()
    says(f"I look.\n{call_text()}", f"I look.\n{call_text()}", "It is 21.", "A", "B")
    api = openai.OpenAI(base_url="http://testserver/v1", api_key="none", http_client=client, max_retries=0)
    asked = {"model": "m", **asked_with_tools()}
    (choice,) = api.chat.completions.create(**asked).choices
    (call,) = choice.message.tool_calls
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "I look.")
    assert json.loads(call.function.arguments) == {"city": "Rome"}
    with api.chat.completions.stream(**asked) as stream:
        final = stream.get_final_completion().choices[0]
    assert final.message.content == "I look."
    assert final.message.tool_calls[0].function.name == "weather"
    result = {"role": "tool", "tool_call_id": call.id, "content": "21"}
    more = [*asked["messages"], choice.message.model_dump(exclude_none=True), result]
    assert api.chat.completions.create(**{**asked, "messages": more}).choices[0].message.content == "It is 21."
    both = api.chat.completions.create(model="m", messages=asked["messages"], n=2).choices
    assert sorted(each.message.content for each in both) == ["A", "B"]
    with pytest.raises(openai.BadRequestError, match="tool_choice must be auto"):
        api.chat.completions.create(**asked, tool_choice="any")
