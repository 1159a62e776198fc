"""The bundled model, for all tests of evaluation."""

from __future__ import annotations

import pytest

from winnow.bundled import MODEL_PATH
from winnow.models import load_model, open_model


@pytest.fixture(scope="module")
def source():
    return open_model(MODEL_PATH)


@pytest.fixture(scope="module")
def model(source):
    return load_model(source, "cpu", "float32")
