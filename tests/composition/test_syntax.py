"""Texts that are no composed names."""

from __future__ import annotations

import pytest

from winnow.composition.names import method
from winnow.errors import MethodError


@pytest.mark.parametrize(
    ("text", "parameters", "error", "message"),
    [
        ("snapkv(window=16, window=8)", {}, MethodError, "twice"),
        ("snapkv(window=)", {}, MethodError, "argument 'window='"),
        ("snapkv(window=3, 4)", {}, MethodError, "argument '4'"),
        ("snapkv(16", {}, MethodError, "Cannot read"),
        ("snapkv++ada", {}, MethodError, "Cannot read"),
        ("", {}, MethodError, "Cannot read"),
    ],
)
def test_errors(text: str, parameters: dict[str, object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        method(text, 64, **parameters)  # type: ignore[arg-type]
