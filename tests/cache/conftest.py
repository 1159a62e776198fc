"""A small model, a context of it and a file of that, for all tests of caches."""

from __future__ import annotations

import pytest

from support.small_caches import compress, made


@pytest.fixture(scope="module")
def model():
    found = made()
    found.generation_config.pad_token_id = 0
    return found


@pytest.fixture(scope="module")
def context(model):
    return compress(model)


@pytest.fixture
def saved(context, tmp_path):
    return context.save(tmp_path / "context.safetensors")
