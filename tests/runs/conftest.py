"""The bundled model, for all tests of runs."""

from __future__ import annotations

import pytest

from winnow.models import load_model


@pytest.fixture(scope="module")
def model(source):
    return load_model(source, "cpu", "float32")
