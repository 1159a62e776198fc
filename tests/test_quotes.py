"""Quotes of pages are true: messages of errors are in the source, and methods that are named can be made."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

import winnow

ROOT = Path(__file__).resolve().parent.parent
TROUBLE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
MESSAGES = re.findall(r"^\| `([^`]+)` \|", TROUBLE, flags=re.M)
COMING = (ROOT / "docs" / "from-kvpress.md").read_text(encoding="utf-8")
METHODS = re.findall(r"`([a-z0-9]+(?:\([^`]*?\))?(?:\+[^`]*)? @ \d+%)`", COMING)


@cache
def source_texts() -> str:
    """All string constants of the package, those between the placeholders of an f-string apart."""
    files = (ROOT / "src" / "winnow").rglob("*.py")
    nodes = (node for file in files for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))))
    return "\n".join(node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))


def test_there_are_quotes() -> None:
    assert len(MESSAGES) >= 15
    assert len(METHODS) >= 5


@pytest.mark.parametrize("message", MESSAGES)
def test_messages_are_in_the_source(message: str) -> None:
    assert all(part.strip() in source_texts() for part in message.split("…"))


@pytest.mark.parametrize("text", METHODS)
def test_methods_can_be_made(text: str) -> None:
    assert winnow.method(text)
