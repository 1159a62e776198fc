"""Docstrings name the thing first: none begins with a question word, or with nothing to name."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ["src", "tests", "benchmarks", "training", "docs", "native", "website", "fuzz"]
NOT_A_THING = "What How Who Where Whether Which When Why Of Is Does Do Are".split()


def blocks(node: ast.AST) -> Iterator[ast.AST]:
    """A node, and all that have statements of their own inside it."""
    yield node
    for name in ("body", "orelse", "handlers", "finalbody", "cases"):
        inside = getattr(node, name, None)
        for each in inside if isinstance(inside, list) else ():
            yield from blocks(each)


def first_words(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, first word) of all docstrings, those under fields and constants among them."""
    for node in blocks(tree):
        body = getattr(node, "body", None)
        for before, each in zip([node, *body], body, strict=False) if isinstance(body, list) else ():
            documented = isinstance(before, ast.Module | ast.ClassDef | ast.FunctionDef | ast.Assign | ast.AnnAssign)
            text = each.value.value if isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant) else None
            if documented and isinstance(text, str) and text.strip():
                yield each.lineno, text.split()[0].strip(",.:")


@pytest.mark.parametrize("folder", FOLDERS)
def test_docstrings_name_the_thing_first(folder: str) -> None:
    files = sorted((ROOT / folder).rglob("*.py"))
    assert files
    found = [(path, *said) for path in files for said in first_words(ast.parse(path.read_text(encoding="utf-8")))]
    assert [f"{path.relative_to(ROOT)}:{line}: {word}" for path, line, word in found if word in NOT_A_THING] == []
    assert found or folder == "docs"
