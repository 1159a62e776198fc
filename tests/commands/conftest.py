"""Fixtures of the tests of commands."""

from __future__ import annotations

import pytest


@pytest.fixture
def no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails the test if the weights of a model are loaded."""

    def load(*_: object) -> None:
        pytest.fail("the model was loaded before the error was found")

    monkeypatch.setattr("winnow.commands.loading.load_model", load)
