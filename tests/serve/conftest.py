"""The bundled model, for all tests of serving, and engines that end with their tests."""

from __future__ import annotations

import pytest

from support.serving import small
from winnow.models import load_model
from winnow.serve.engine import Engine, Limits


@pytest.fixture(scope="module")
def model(source):
    return load_model(source, "cpu", "float32")


@pytest.fixture(scope="module")
def tiny(source):
    """A random model, and its source."""
    return small(source)


@pytest.fixture
def engine_of():
    """Makes engines, which try candidates and read the shortest pieces unless they are told otherwise."""
    engines = []

    def make(source, model, candidates=7, longest_pause=0.0, **limits):
        engines.append(Engine(source, model, Limits(candidates=candidates, longest_pause=longest_pause, **limits)))
        return engines[-1]

    yield make
    for engine in engines:
        assert engine.close()
