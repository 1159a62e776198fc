"""Tensors have a device of their own: torch's default, which a program may set, decides about none of Winnow's."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from torch.utils._device import _device_constructors

import winnow

SOURCES = Path(winnow.__file__).parent
MAKERS = {f"torch.{each.__name__}" for each in _device_constructors()}
"""Functions that make a tensor on the default device, where they are given none."""


def unplaced(tree: ast.AST) -> Iterator[int]:
    """Lines that make a tensor wherever the default says."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in MAKERS:
            given = {each.arg for each in node.keywords}
            if not given & {"device", "out"}:
                yield node.lineno


def test_every_tensor_has_a_device() -> None:
    found = []
    for path in sorted(SOURCES.rglob("*.py")):
        name = path.relative_to(SOURCES)
        found += [f"{name}:{line}" for line in unplaced(ast.parse(path.read_text(encoding="utf-8")))]
    assert found == []
