"""Fixtures of several tests of diagnoses."""

from __future__ import annotations

import pytest

from support.families import build


@pytest.fixture(scope="module")
def llama():
    model = build("llama", num_hidden_layers=2)
    model.set_attn_implementation("winnow")
    return model


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr("winnow.score.window._BLOCK", 1 << 10)
