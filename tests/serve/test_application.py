"""Addresses of the server: whole answers, streams, refusals, and clients that go away."""

from __future__ import annotations

import asyncio
import json
import logging
import time

import anyio
import pytest
from starlette.requests import Request
from starlette.testclient import TestClient

from support.asked import DOCUMENT
from support.serving import about, alone, alone_in_turn, beginning, idle
from winnow.cache import compress
from winnow.commands.compress import document_start
from winnow.serve import application as module
from winnow.serve.application import Settings, application
from winnow.serve.engine import Engine, Limits
from winnow.serve.refusals import Refused

pytestmark = pytest.mark.usefixtures("one_thread")

ASKED = {"messages": [{"role": "user", "content": f"{DOCUMENT.text} {DOCUMENT.questions[0].text}"}], "max_tokens": 6}
TEXT = {"prompt": "The safe in the old bakery", "max_tokens": 6}
ENDLESS = {**TEXT, "max_tokens": 1500, "temperature": 1.5, "seed": 1}
CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"


@pytest.fixture(scope="module")
def engine(source, model):
    engine = Engine(source, model, Limits(rows=2, waiting=2))
    yield engine
    assert engine.close()


@pytest.fixture(scope="module")
def beginnings(source, model):
    context = compress(model, document_start(source.tokenizer, DOCUMENT.text), "adakv @ 96")
    return [beginning(model, name="owner/m"), about(context, DOCUMENT.text, "report")]


@pytest.fixture
def site_of(engine, source, beginnings):
    def make(finish=lambda name, begun, finished: None, **settings):
        return application(engine, source.tokenizer, beginnings, Settings(**settings), finish)

    return make


@pytest.fixture
def client(site_of):
    return TestClient(site_of(), raise_server_exceptions=False)


def events(response):
    """The JSON of a stream, once its form is checked."""
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = response.text.split("\n\n")
    assert lines[-1] == ""
    assert lines[-2] == "data: [DONE]"
    said = [line for line in lines[:-2] if not line.startswith(":")]
    assert all(line.startswith("data: ") and "\n" not in line for line in said)
    return [json.loads(line.removeprefix("data: ")) for line in said]


def problem(response, status):
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    return error


def test_a_whole_answer(client, source, model):
    body = client.post(CHAT, json=ASKED).json()
    (expected,) = alone_in_turn(source, model, "full", [ASKED["messages"][0]["content"]], 6)
    assert body["object"] == "chat.completion"
    assert body["id"].startswith("chatcmpl-")
    assert body["model"] == "owner/m"
    assert body["choices"] == [
        {"index": 0, "message": {"role": "assistant", "content": expected}, "logprobs": None, "finish_reason": "length"}
    ]
    usage = body["usage"]
    assert usage["completion_tokens"] == 6
    assert usage["total_tokens"] == usage["prompt_tokens"] + 6
    assert body["winnow"]["method"] == "full"
    assert body["winnow"]["held_bytes"] > 0


def test_a_text_that_goes_on(client, source, model):
    body = client.post(COMPLETION, json=TEXT).json()
    assert body["object"] == "text_completion"
    assert body["id"].startswith("cmpl-")
    (choice,) = body["choices"]
    assert choice["text"].startswith(" ")
    assert choice["text"].strip() == alone(source, model, "full", TEXT["prompt"], 6)


@pytest.mark.parametrize("address", [CHAT, COMPLETION])
def test_a_stream_says_the_same(address, client):
    asked = ASKED if address == CHAT else TEXT
    whole = client.post(address, json=asked).json()
    said = events(client.post(address, json={**asked, "stream": True, "stream_options": {"include_usage": True}}))
    *pieces, counted = said
    assert {piece["object"] for piece in said} == {"chat.completion.chunk" if address == CHAT else "text_completion"}
    assert len({piece["id"] for piece in said}) == 1
    choices = [piece["choices"][0] for piece in pieces]
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["length"]
    if address == CHAT:
        assert choices[0]["delta"] == {"role": "assistant", "content": ""}
        text = "".join(choice["delta"].get("content", "") for choice in choices)
        assert text == whole["choices"][0]["message"]["content"]
    else:
        assert "".join(choice["text"] for choice in choices) == whole["choices"][0]["text"]
    assert "winnow" in pieces[-1]
    assert counted["choices"] == []
    assert counted["usage"]["total_tokens"] == whole["usage"]["total_tokens"]
    assert len(events(client.post(address, json={**asked, "stream": True}))) == len(pieces)


@pytest.mark.parametrize("address", [CHAT, COMPLETION])
@pytest.mark.parametrize("more", [{}, {"temperature": 1.5, "seed": 1}], ids=["greedy", "drawn"])
def test_two_answers_to_one_prompt(more, address, client):
    asked = {**(ASKED if address == CHAT else TEXT), **more}
    seeds = [{"seed": more["seed"] + number} if more else {} for number in range(2)]
    alone = [client.post(address, json={**asked, **seed}).json() for seed in seeds]
    body = client.post(address, json={**asked, "n": 2}).json()
    assert [choice["index"] for choice in body["choices"]] == [0, 1]
    for choice, other in zip(body["choices"], alone, strict=True):
        assert choice == {**other["choices"][0], "index": choice["index"]}
    usage, one = body["usage"], alone[0]["usage"]
    assert usage["prompt_tokens"] == one["prompt_tokens"]
    assert usage["completion_tokens"] == sum(each["usage"]["completion_tokens"] for each in alone)
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    # That of the largest row, with nothing of the others.
    assert body["winnow"]["full_bytes"] == max(each["winnow"]["full_bytes"] for each in alone)
    assert body["winnow"].keys() == alone[0]["winnow"].keys()


@pytest.mark.parametrize("address", [CHAT, COMPLETION])
def test_a_stream_of_two_answers(address, client):
    asked = {**(ASKED if address == CHAT else TEXT), "n": 2, "temperature": 1.5, "seed": 1}
    whole = client.post(address, json=asked).json()
    *pieces, counted = events(
        client.post(address, json={**asked, "stream": True, "stream_options": {"include_usage": True}})
    )
    choices = [piece["choices"][0] for piece in pieces]
    assert [choice["index"] for choice in choices[:2]] == [0, 1]
    for expected in whole["choices"]:
        own = [choice for choice in choices if choice["index"] == expected["index"]]
        assert [choice["finish_reason"] for choice in own] == [None] * (len(own) - 1) + [expected["finish_reason"]]
        if address == CHAT:
            assert own[0]["delta"] == {"role": "assistant", "content": ""}
            text = "".join(choice["delta"].get("content", "") for choice in own)
            assert text == expected["message"]["content"]
        else:
            assert "".join(choice["text"] for choice in own) == expected["text"]
    assert len([piece for piece in pieces if "winnow" in piece]) == 2
    assert len({piece["id"] for piece in pieces}) == 1
    # Those of the first request are held now.
    held = {"prompt_tokens_details": counted["usage"]["prompt_tokens_details"]}
    assert counted["choices"] == []
    assert counted["usage"] == {**whole["usage"], **held}


def test_a_conversation_is_gone_on_with(client):
    answer = client.post(CHAT, json=ASKED).json()["choices"][0]["message"]
    more = [*ASKED["messages"], answer, {"role": "user", "content": DOCUMENT.questions[1].text}]
    usage = client.post(CHAT, json={**ASKED, "messages": more}).json()["usage"]
    assert usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"] < 60


def test_a_document_is_asked_by_its_name(client):
    for question in DOCUMENT.questions[:2]:
        asked = {"model": "report", "messages": [{"role": "user", "content": question.text}]}
        body = client.post(CHAT, json=asked).json()
        assert body["model"] == "report"
        assert body["choices"][0]["message"]["content"] == question.answer
        assert body["choices"][0]["finish_reason"] == "stop"
    assert problem(client.post(COMPLETION, json={**TEXT, "model": "report"}), 400)["param"] == "model"


def test_models(client):
    listed = client.get("/v1/models").json()
    assert [each["id"] for each in listed["data"]] == ["owner/m", "report"]
    for each in listed["data"]:
        assert client.get(f"/v1/models/{each['id']}").json() == each
    assert problem(client.get("/v1/models/none"), 404)["code"] == "model_not_found"


def test_how_the_server_is(client, engine):
    assert client.get("/health").json() == {"status": "ok"}
    assert client.get("/stats").json().keys() == engine.counts().keys()


def test_addresses_that_are_not_served(client):
    for address in (CHAT, COMPLETION):
        assert "GET" in problem(client.get(address), 405)["message"]
    assert "/v1/embeddings" in problem(client.post("/v1/embeddings", json={}), 404)["message"]
    assert problem(client.post("/v1/models", json={}), 405)


def test_requests_that_are_refused(client):
    for address, asked in ((CHAT, ASKED), (COMPLETION, TEXT)):
        for number in (3, 2**62):
            error = problem(client.post(address, json={**asked, "n": number}), 400)
            assert (error["param"], "--rows" in error["message"]) == ("n", True)
    error = problem(client.post(CHAT, json={**ASKED, "model": "x"}), 404)
    assert (error["param"], error["code"]) == ("model", "model_not_found")
    assert "owner/m, report" in error["message"]
    error = problem(client.post(CHAT, json={"messages": [{"role": "user", "content": DOCUMENT.text * 40}]}), 400)
    assert error["code"] == "context_length_exceeded"
    error = problem(client.post(COMPLETION, json={"prompt": DOCUMENT.text * 40, "stream": True}), 400)
    assert (error["code"], error["param"]) == ("context_length_exceeded", "prompt")


def test_bodies_that_are_none(client, monkeypatch):
    form = {"Content-Type": "application/json"}
    assert "Content-Type" in problem(client.post(CHAT, content=b"{}", headers={"Content-Type": "text/plain"}), 415)["message"]  # fmt: skip  # noqa: E501
    assert problem(client.post(CHAT, data={"a": "b"}), 415)
    assert problem(client.post(CHAT, content=b"{", headers=form), 400)
    assert problem(client.post(CHAT, content=b"\xff\xfe\xff", headers=form), 400)
    assert problem(client.post(CHAT, content=b"[" * 10**5, headers=form), 400)
    assert problem(client.post(CHAT, content=b"9" * 10**4, headers=form), 400)
    assert problem(client.post(CHAT, content=b'{"\\ud800": 1}', headers=form), 400)["param"] == "\\ud800"
    assert problem(client.post(CHAT, content=b"", headers=form), 400)
    assert client.post(CHAT, json=ASKED, headers={"Content-Type": "Application/JSON; charset=utf-8"}).status_code == 200
    monkeypatch.setattr(module, "LARGEST", 1 << 20)
    assert "1 MiB" in problem(client.post(CHAT, content=b" " * (2 << 20), headers=form), 413)["message"]


def test_a_key_is_asked_for(site_of):
    client = TestClient(site_of(key="sécret"))
    for headers in ({}, {"Authorization": "Bearer secret"}, {"Authorization": b"Bearer s\xc3"}):
        for response in (
            client.get("/v1/models", headers=headers),
            client.get("/v1/models/report", headers=headers),
            client.get("/stats", headers=headers),
            client.post(CHAT, json=ASKED, headers=headers),
            client.post(COMPLETION, json=TEXT, headers=headers),
        ):
            assert problem(response, 401)["code"] == "invalid_api_key"
    right = {"Authorization": "Bearer sécret".encode()}
    assert client.get("/v1/models", headers=right).status_code == 200
    assert client.get("/health").status_code == 200


@pytest.mark.parametrize(
    "host", ["localhost:8000", "127.0.0.1", "[::1]:8000", "LOCALHOST", "localhost.:8000", "vm.lan", "VM.lan."]
)
def test_hosts_that_are_this_machine(host, site_of):
    client = TestClient(site_of(hosts=("localhost", "127.0.0.1", "::1", "VM.LAN.")))
    assert client.get("/v1/models", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8000", "localhost.evil.example", "[::2]:8000"])
def test_other_hosts(host, site_of):
    """Pages of a name that was made to mean this machine."""
    client = TestClient(site_of(hosts=("localhost", "127.0.0.1", "::1")))
    error = problem(client.post(CHAT, json=ASKED, headers={"Host": host}), 403)
    assert "--host" in error["message"]


def test_what_the_server_decides(site_of):
    client = TestClient(site_of(max_new_tokens=2))
    body = client.post(COMPLETION, json={"prompt": TEXT["prompt"]}).json()
    assert body["usage"]["completion_tokens"] == 2


def test_every_answer_is_told_of(site_of, caplog):
    told = []
    client = TestClient(site_of(lambda *all_of_it: told.append(all_of_it)))
    client.post(COMPLETION, json=TEXT), events(client.post(COMPLETION, json={**TEXT, "stream": True}))
    assert [(name, finished.tokens) for name, _, finished in told] == [("owner/m", 6)] * 2

    def broken(name, begun, finished):
        raise OSError("nobody listens")

    client = TestClient(site_of(broken))
    with caplog.at_level(logging.ERROR):
        assert client.post(COMPLETION, json=TEXT).status_code == 200
        assert len(events(client.post(COMPLETION, json={**TEXT, "stream": True}))) > 2
    assert "could not be told" in caplog.text


def test_every_one_of_several_answers_is_told_of(site_of):
    told = []
    client = TestClient(site_of(lambda *all_of_it: told.append(all_of_it)))
    (
        client.post(COMPLETION, json={**TEXT, "n": 2}),
        events(client.post(COMPLETION, json={**TEXT, "n": 2, "stream": True})),
    )
    assert [(finished.number, finished.tokens) for _, _, finished in told] == [(0, 6), (1, 6)] * 2


def test_what_nobody_thought_of(client, monkeypatch, caplog):
    def broken(*_):
        raise KeyError("so it goes")

    monkeypatch.setattr(module, "prompt_of", broken)
    assert "KeyError" in problem(client.post(CHAT, json=ASKED), 500)["message"]
    assert [record.name for record in caplog.records if record.levelno == logging.ERROR] == [module.__name__]


# --- time, and clients that go away ----------------------------------------------------------------------------


def test_a_stream_lives_while_nothing_is_said(client, model, monkeypatch):
    """Comments between events; what goes wrong then is told in the stream."""
    monkeypatch.setattr(module, "PATIENCE", 0.02)
    hook = model.register_forward_pre_hook(lambda *_: time.sleep(0.2))
    try:
        response = client.post(COMPLETION, json={**TEXT, "max_tokens": 2, "stream": True})
    finally:
        hook.remove()
    assert response.text.count(": still at work\n\n") > 2
    assert [each["choices"][0]["finish_reason"] for each in events(response)][-1] == "length"

    def broken(*_):
        time.sleep(0.2)
        raise ValueError("so it goes")

    hook = model.register_forward_pre_hook(broken)
    try:
        said = events(client.post(COMPLETION, json={**TEXT, "stream": True}))
    finally:
        hook.remove()
    assert "so it goes" in said[-1]["error"]["message"]


def asked_by(site, body, leave, address=COMPLETION):
    """Gives a request to the server, and goes away once `leave` says so of the messages that came."""
    raw = json.dumps(body).encode()
    scope = {
        "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1", "method": "POST",
        "scheme": "http", "path": address, "raw_path": address.encode(), "query_string": b"", "root_path": "",
        "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2),
    }  # fmt: skip
    sent = []

    async def run():
        given = asyncio.Event()

        async def receive():
            if not given.is_set():
                given.set()
                return {"type": "http.request", "body": raw, "more_body": False}
            while not leave(sent):
                await anyio.sleep(0.01)
            return {"type": "http.disconnect"}

        async def send(message):
            sent.append(message)

        await asyncio.wait_for(site(scope, receive, send), 30)

    asyncio.run(run())
    return sent


@pytest.fixture
def one_row(source, model):
    """An engine that answers one at a time, so that a row which stays is noticed."""
    engine = Engine(source, model, Limits(rows=1))
    yield engine
    assert engine.close()


def test_a_reader_of_a_stream_goes_away(one_row, source, beginnings):
    site = application(one_row, source.tokenizer, beginnings, Settings())
    sent = asked_by(site, {**ENDLESS, "stream": True}, lambda sent: len(sent) > 5)
    idle(one_row, 5)
    assert 5 < len(sent) < 200


def test_a_reader_of_a_stream_goes_away_before_it_begins(one_row, source, beginnings):
    site = application(one_row, source.tokenizer, beginnings, Settings())
    asked_by(site, {**ENDLESS, "stream": True}, lambda sent: True)
    idle(one_row, 5)


def test_somebody_who_waits_for_a_whole_answer_goes_away(one_row, source, beginnings, monkeypatch):
    monkeypatch.setattr(module, "LISTENS", 0.02)
    site = application(one_row, source.tokenizer, beginnings, Settings())
    told = []
    asked_by(site, ENDLESS, lambda sent: one_row.counts()["answering"] and told.append(1) is None)
    assert told
    idle(one_row, 5)


def test_a_full_queue(source, model, beginnings):
    engine = Engine(source, model, Limits(rows=1, waiting=1))
    client = TestClient(application(engine, source.tokenizer, beginnings, Settings()))
    hook = model.register_forward_pre_hook(lambda *_: time.sleep(0.02))
    try:
        with anyio.from_thread.start_blocking_portal() as portal:
            asked = [portal.start_task_soon(anyio.to_thread.run_sync, post, client) for _ in range(4)]
            found = [each.result(60) for each in asked]
    finally:
        hook.remove()
        assert engine.close()
    assert {response.status_code for response in found} == {200, 503}
    for response in found:
        if response.status_code == 503:
            assert response.headers["retry-after"] == "5"
            assert "waiting" in problem(response, 503)["message"]


def post(client):
    return client.post(COMPLETION, json=TEXT)


def test_a_server_that_stops(source, model, beginnings):
    engine = Engine(source, model, Limits())
    client = TestClient(application(engine, source.tokenizer, beginnings, Settings()))
    assert engine.close()
    assert "about to stop" in problem(client.post(COMPLETION, json=TEXT), 503)["message"]


def test_another_host_is_refused_whoever_has_the_key(site_of):
    client = TestClient(site_of(key="s", hosts=("localhost",)))
    key = {"Authorization": "Bearer s"}
    assert client.get("/v1/models", headers={**key, "Host": "localhost:8000"}).status_code == 200
    assert problem(client.get("/v1/models", headers={**key, "Host": "evil.example"}), 403)


def test_a_body_is_bounded_however_it_comes(monkeypatch):
    """In pieces, as servers hand it on."""
    monkeypatch.setattr(module, "LARGEST", 1000)

    async def receive():
        given.append(1)
        return {"type": "http.request", "body": b" " * 300, "more_body": len(given) < 50}

    given = []
    scope = {"type": "http", "method": "POST", "headers": [(b"content-type", b"application/json")]}
    with pytest.raises(Refused) as refused:
        asyncio.run(module._body(Request(scope, receive)))
    assert (refused.value.status, len(given)) == (413, 4)


def test_a_request_may_ask_for_more_than_is_usual(site_of):
    client = TestClient(site_of(max_new_tokens=2))
    assert client.post(COMPLETION, json={**TEXT, "max_tokens": 4}).json()["usage"]["completion_tokens"] == 4


def test_a_whole_answer_that_nobody_waits_for_is_not_said_to_its_end(one_row, source, beginnings, monkeypatch):
    monkeypatch.setattr(module, "LISTENS", 0.02)
    site = application(one_row, source.tokenizer, beginnings, Settings())
    sent = asked_by(site, ENDLESS, lambda sent: one_row.counts()["answering"] > 0)
    assert sent[0]["status"] == 499
    idle(one_row, 5)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_of_several_answers_goes_away(stream, engine, source, beginnings, monkeypatch):
    """All of them end."""
    monkeypatch.setattr(module, "LISTENS", 0.02)
    site = application(engine, source.tokenizer, beginnings, Settings())
    asked_by(site, {**ENDLESS, "n": 2, "stream": stream}, lambda sent: engine.counts()["answering"] == 2)
    idle(engine, 5)


@pytest.mark.parametrize("stream", [False, True])
def test_the_engine_is_told_of_everybody_who_goes_away(stream, one_row, source, beginnings, monkeypatch):
    """At once, not when the answer is whole."""
    monkeypatch.setattr(module, "LISTENS", 0.02)
    canceled, cancel = [], one_row.cancel

    def noting(asked):
        canceled.append(one_row.counts()["answering"])
        cancel(asked)

    monkeypatch.setattr(one_row, "cancel", noting)
    site = application(one_row, source.tokenizer, beginnings, Settings())
    asked_by(site, {**ENDLESS, "stream": stream}, lambda sent: one_row.counts()["answering"] > 0)
    assert canceled == [1]
    idle(one_row, 5)


def test_tokens_that_were_held_are_told(client):
    asked = {"prompt": "The ladder behind the school is", "max_tokens": 3}
    first = client.post(COMPLETION, json=asked).json()
    assert first["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
    more = {**asked, "prompt": f"{asked['prompt']}{first['choices'][0]['text']} and"}
    found = client.post(COMPLETION, json=more).json()["usage"]
    assert 0 < found["prompt_tokens_details"]["cached_tokens"] < found["prompt_tokens"]
