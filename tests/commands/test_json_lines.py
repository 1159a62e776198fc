"""JSON on standard output, whatever its encoding."""

from __future__ import annotations

import io
import json
import sys

import pytest

from winnow.commands.json_lines import json_line


@pytest.mark.parametrize("encoding", ["utf-8", "UTF8", "ascii", "cp1252"])
def test_what_is_written_can_be_read(monkeypatch: pytest.MonkeyPatch, encoding: str) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding=encoding, errors="backslashreplace"))
    entry = {"question": "é 何? 😀"}
    print(json_line(entry), flush=True)
    assert json.loads(raw.getvalue().decode(encoding)) == entry
    assert ("何".encode() in raw.getvalue()) == encoding.lower().startswith("utf")
