"""The site's navigation has every page, and every page that it names is there."""

from __future__ import annotations

import ast
import re
import runpy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
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


def test_pages_can_be_read_from_the_disk() -> None:
    settings = yaml.safe_load((ROOT / "website" / "mkdocs.yml").read_text(encoding="utf-8"))
    assert settings["use_directory_urls"] is False
    assert settings["extra"]["homepage"] == "index.html"


@pytest.fixture
def placed(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], str]:
    """Pages of the site with their links, by their place on it; its builder is not needed for that."""
    for name in ("mkdocs", "mkdocs.exceptions", "mkdocs.structure", "mkdocs.structure.files"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setattr(sys.modules["mkdocs.exceptions"], "PluginError", LookupError, raising=False)
    for name in ("File", "Files"):
        monkeypatch.setattr(sys.modules["mkdocs.structure.files"], name, object, raising=False)
    found: dict[str, Any] = runpy.run_path(str(ROOT / "website" / "pages.py"))
    pages = {*outside().values(), *(str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.*"))}
    files = SimpleNamespace(get_file_from_path=lambda path: path in pages)

    def on_site(place: str, markdown: str) -> str:
        page = SimpleNamespace(file=SimpleNamespace(src_uri=place))
        text: str = found["on_page_markdown"](markdown, page, None, files)
        return text

    return on_site


def test_links_lead_to_pages_of_the_site_and_not_to_other_files(placed: Callable[[str, str], str]) -> None:
    assert placed("api.md", "[a](../docs/python.md#b), [c](../LICENSE)") == "[a](python.md#b), c"
    assert (
        placed("index.md", "[a](docs/results), [b](docs/pictures/study.png)")
        == "[a](benchmarks.md), [b](pictures/study.png)"
    )
    assert placed("results/study.md", "[a](../study.md)") == "[a](../study.md)"


def test_a_link_to_nowhere_is_an_error(placed: Callable[[str, str], str]) -> None:
    with pytest.raises(LookupError, match=r"website/api\.md links to python\.md, which is not there"):
        placed("api.md", "[a](python.md)")


def test_links_of_all_pages_outside_of_docs_lead_somewhere(placed: Callable[[str, str], str]) -> None:
    for source, place in outside().items():
        placed(place, (ROOT / source).read_text(encoding="utf-8"))
    assert "[From Python](python.md)" in placed("api.md", (ROOT / "website" / "api.md").read_text(encoding="utf-8"))
