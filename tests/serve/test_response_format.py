"""Answers of random weights that follow a schema, and requests for them that are refused."""

from __future__ import annotations

import json
import sys
from functools import partial

import pytest

from support.schemas import PERSON, TREE, follows
from support.serving import DRAWN, Told, beginning
from support.sites import CHAT, answered, refused, site, spelled_engine, streamed
from support.tools import PLAIN, speller
from support.turns import each_value
from winnow.evaluate.sampling import GREEDY
from winnow.serve.beginnings import Prompt
from winnow.serve.constrained import schema_grammar
from winnow.serve.engine import Engine
from winnow.serve.grammars import Grammars

pytest.importorskip("llguidance")
pytestmark = pytest.mark.usefixtures("one_thread")

PLACE = "response_format.json_schema.schema"
LETTERS = {"enum": ["yes", "no", "perhaps"]}
PAIRS = {"type": "array", "items": {"type": "integer", "minimum": -9, "maximum": 9}, "maxItems": 5}
SCHEMAS = {"person": PERSON, "tree": TREE, "letters": LETTERS, "pairs": PAIRS}


@pytest.fixture(scope="module")
def served(source):
    """An engine, its tokenizer and its model."""
    tokenizer = speller(PLAIN, pieces=['{"', '"}', "},", '":', "true", "[["])
    engine, model = spelled_engine(source, tokenizer)
    yield engine, tokenizer, model
    assert engine.close()


@pytest.fixture
def client(served):
    return site(*served)


def wanted(schema, **more):
    """A request for answers that follow a schema."""
    form = {"type": "json_schema", "json_schema": {"name": "it", "strict": True, "schema": schema}}
    return {"messages": [{"role": "user", "content": "Who?"}], "response_format": form, "max_tokens": 2000, **more}


def values(body, schema):
    """The values of answers, which follow a schema."""
    found = []
    for choice in body["choices"]:
        assert choice["finish_reason"] == "stop"
        found.append(json.loads(choice["message"]["content"]))
        assert follows(found[-1], schema)
    return found


@pytest.mark.parametrize(("name", "more"), each_value(list(SCHEMAS), [{}, {"top_p": 0.5}, {"temperature": 2.5}]))
def test_answers_follow_a_schema(name, more, client):
    """Random weights do not, by themselves."""
    schema = SCHEMAS[name]
    found = values(answered(client, **wanted(schema, **{"temperature": 1.0, "seed": 1, "n": 4, **more})), schema)
    assert len({json.dumps(each) for each in found}) > 1


@pytest.mark.parametrize("schema", [PERSON, LETTERS, PAIRS])
def test_the_most_likely_answer_follows_a_schema(schema, client):
    values(answered(client, **wanted(schema)), schema)


@pytest.mark.parametrize("schema", [PERSON, LETTERS])
def test_a_stream_says_the_same(schema, client):
    asked = wanted(schema, temperature=1.0, seed=5, n=3)
    whole = answered(client, **asked)["choices"]
    pieces = streamed(client, **asked)
    for choice in whole:
        own = [piece for piece in pieces if piece["index"] == choice["index"]]
        assert "".join(piece["delta"].get("content") or "" for piece in own) == choice["message"]["content"]
        assert own[-1]["finish_reason"] == choice["finish_reason"] == "stop"


def test_each_answer_is_the_one_that_its_seed_gets_alone(client):
    asked = wanted(PERSON, temperature=1.0)
    together = answered(client, **asked, seed=3, n=3)
    apart = [answered(client, **asked, seed=3 + number) for number in range(3)]
    assert values(together, PERSON) == [values(each, PERSON)[0] for each in apart]


def test_any_object(client):
    form = {"type": "json_object"}
    asked = wanted(PERSON, response_format=form, temperature=1.0, seed=1, n=4, max_tokens=300)
    ended = [each for each in answered(client, **asked)["choices"] if each["finish_reason"] == "stop"]
    assert ended
    assert all(isinstance(json.loads(each["message"]["content"]), dict) for each in ended)


def test_an_answer_that_is_cut_is_a_beginning(client):
    whole = answered(client, **wanted(PERSON, temperature=1.0, seed=1))["choices"][0]["message"]["content"]
    (choice,) = answered(client, **wanted(PERSON, temperature=1.0, seed=1, max_tokens=5))["choices"]
    assert choice["finish_reason"] == "length"
    assert whole.startswith(choice["message"]["content"])
    tokens = answered(client, **wanted(PERSON, temperature=1.0, seed=1))["usage"]["completion_tokens"]
    # The last token may be the last that there is room for.
    (choice,) = answered(client, **wanted(PERSON, temperature=1.0, seed=1, max_tokens=tokens))["choices"]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("stop", whole)


def test_a_stop_text_ends_an_answer(client):
    (choice,) = answered(client, **wanted(PERSON, temperature=1.0, seed=1, stop=["age"]))["choices"]
    assert choice["finish_reason"] == "stop"
    assert choice["message"]["content"].endswith('"')


def test_a_conversation_goes_on_behind_an_answer(client):
    asked = wanted(PERSON, temperature=1.0, seed=1)
    first = answered(client, **asked)
    said = [*asked["messages"], first["choices"][0]["message"], {"role": "user", "content": "And?"}]
    second = answered(client, **{**asked, "messages": said})
    values(second, PERSON)
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] >= first["usage"]["prompt_tokens"]


@pytest.mark.parametrize("sampling", [GREEDY, DRAWN])
def test_an_answer_beside_one_that_follows_a_schema_is_the_one_alone(sampling, served):
    engine, tokenizer, model = served
    bound = Grammars(tokenizer, engine.stops).compiled(partial(schema_grammar, PERSON), "f")

    def asked(text, grammar):
        request = Told(beginning(model), Prompt(text, False, None), most=40, sampling=sampling)
        request.asked.grammar = grammar
        engine.ask(request.asked)
        return request

    alone = [asked("One", None).wait().text, asked("Other", bound).wait().text]
    together = [asked("One", None), asked("Other", bound)]
    assert [each.wait().text for each in together] == alone


def test_an_answer_of_any_text_has_no_mask(client, monkeypatch):
    def unused(*_):
        raise AssertionError("a mask")

    monkeypatch.setattr("winnow.serve.engine.among", unused)
    monkeypatch.setattr(Grammars, "compiled", unused)
    answered(client, **wanted(PERSON, response_format={"type": "text"}, max_tokens=3))


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"type": "thing"}, "Invalid type: thing"),
        ({"type": "string", "format": "int32"}, "Unknown format: int32"),
        ({"type": "object", "properties": {"a": {"$ref": "#/$defs/b"}}}, "does not exist"),
        ({"$ref": "#"}, "no answer can follow"),
    ],
)
def test_a_wrong_schema_is_refused_before_any_work(schema, said, client, monkeypatch):
    def asked(engine, asked):
        raise AssertionError(asked)

    monkeypatch.setattr(Engine, "ask", asked)
    for more in ({}, {"stream": True}):
        error = refused(client, **wanted(schema, **more))
        assert error["param"] == PLACE
        assert said in error["message"]


def test_an_answer_that_cannot_go_on_is_an_error(client):
    """No token is left within the only value that is allowed."""
    schema = {"type": "object", "properties": {"a": {"enum": ["\x01"]}}, "required": ["a"]}
    assert "no answer can follow" in refused(client, **wanted(schema))["message"]
    error = streamed_error(client, **wanted(schema))
    assert error["param"] == PLACE
    answered(client, **wanted(PERSON, seed=1))


def streamed_error(client, **asked):
    response = client.post(CHAT, json={**asked, "stream": True})
    last = response.text.split("\n\n")[-3]
    return json.loads(last.removeprefix("data: "))["error"]


def test_without_llguidance_everything_else_is_answered(served, monkeypatch):
    for name in ("llguidance", "llguidance.hf"):
        monkeypatch.setitem(sys.modules, name, None)
    client = site(*served)
    error = refused(client, **wanted(PERSON))
    assert error["param"] == PLACE
    assert "llguidance" in error["message"]
    answered(client, **wanted(PERSON, response_format={"type": "text"}, max_tokens=3))


def test_a_model_that_knows_whole_words_follows_no_schema(source, model, engine_of):
    client = site(engine_of(source, model), source.tokenizer, model)
    error = refused(client, **wanted(PERSON))
    assert error["param"] == PLACE
    assert "cannot read its tokenizer" in error["message"]


def test_the_official_client(client):
    """If it is installed: it is no dependency."""
    openai = pytest.importorskip("openai")
    pydantic = pytest.importorskip("pydantic")

    class City(pydantic.BaseModel):
        name: str = pydantic.Field(max_length=5)
        large: bool

    api = openai.OpenAI(base_url="http://testserver/v1", api_key="none", http_client=client, max_retries=0)
    asked = {"model": "m", "messages": wanted(PERSON)["messages"], "temperature": 1.0, "seed": 1}
    found = api.chat.completions.parse(**asked, response_format=City).choices[0].message.parsed
    assert isinstance(found, City)


@pytest.mark.parametrize("seed", range(2))
def test_a_seed_gives_the_same_answer_again(seed, client):
    asked = wanted(PERSON, temperature=1.0, seed=seed)
    assert values(answered(client, **asked), PERSON) == values(answered(client, **asked), PERSON)
