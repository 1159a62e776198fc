"""Clients of a server whose model has random weights, and a tokenizer that spells everything."""

from __future__ import annotations

import json

from starlette.testclient import TestClient

from support.serving import beginning, small
from winnow.models import ModelSource
from winnow.serve.application import Settings, application
from winnow.serve.engine import Engine, Limits

CHAT = "/v1/chat/completions"


def spelled_engine(source, tokenizer, **limits):
    """An engine whose model says the tokens of a tokenizer, and the model."""
    # One layer: answers depend on grammars, and have many tokens.
    own, model = small(source, vocab_size=len(tokenizer), max_position_embeddings=4096, num_hidden_layers=1)
    model.generation_config.eos_token_id = [tokenizer.eos_token_id]
    return Engine(ModelSource("spelled", own.config, tokenizer), model, Limits(**limits)), model


def site(engine, tokenizer, model):
    """A client of a server."""
    return TestClient(application(engine, tokenizer, [beginning(model)], Settings()))


def answered(client, **asked):
    """A whole answer."""
    response = client.post(CHAT, json=asked)
    assert response.status_code == 200, response.text
    return response.json()


def refused(client, **asked):
    """The error of a request that is wrong."""
    response = client.post(CHAT, json=asked)
    assert response.status_code == 400, response.text
    return response.json()["error"]


def streamed(client, **asked):
    """Choices of the pieces of a stream."""
    response = client.post(CHAT, json={**asked, "stream": True})
    assert response.status_code == 200, response.text
    lines = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line.startswith("data: ")]
    assert lines.pop() == "[DONE]"
    return [choice for line in lines for choice in json.loads(line)["choices"]]
