"""The site's navigation has every page, and every page that it names is there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml  # transformers brings it

import winnow

ROOT = Path(__file__).resolve().parent.parent


def named(navigation: Any) -> Iterator[str]:
    """Pages of a navigation, which nests lists and names."""
    for entry in navigation:
        if isinstance(entry, str):
            yield entry
        else:
            for inside in entry.values():
                yield from [inside] if isinstance(inside, str) else named(inside)


def outside() -> dict[str, str]:
    """Pages that lie outside of docs, by their path; the site's own module needs its builder to be imported."""
    tree = ast.parse((ROOT / "website" / "pages.py").read_text(encoding="utf-8"))
    (value,) = (
        node.value for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "OUTSIDE"
    )
    found: dict[str, str] = ast.literal_eval(value)
    return found


def test_the_navigation_has_every_page_once() -> None:
    pages = list(named(yaml.safe_load((ROOT / "website" / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]))
    docs = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    others = {page for page in outside().values() if page.endswith(".md")}
    assert sorted(pages) == sorted(docs | others)


def test_what_lies_outside_is_there() -> None:
    assert [source for source in outside() if not (ROOT / source).is_file()] == []


def test_the_reference_has_every_public_name() -> None:
    text = (ROOT / "website" / "api.md").read_text(encoding="utf-8")
    listed = re.findall(r"^::: winnow\.(\w+)$", text, re.MULTILINE)
    assert sorted(listed) == sorted({*winnow.__all__} - {"__version__"})
