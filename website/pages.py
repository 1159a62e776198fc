"""Pages of the site that lie outside of `docs`, and links that lead to where a page lies on the site."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
OUTSIDE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "benchmarks/README.md": "benchmarks.md",
    "training/README.md": "training.md",
    "fuzz/README.md": "fuzz.md",
    "website/api.md": "api.md",
    "website/style.css": "style.css",
}
"""Path on the site by path in the repository."""
_LINK = re.compile(r"(?<=\]\()([^)\s:#]+)(#[^)]*)?(?=\))")


def on_files(files: Files, config: Any) -> Files:
    """Adds what lies outside of `docs`."""
    for source, page in OUTSIDE.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """The page with links from its place on the site. A link to a file that is no page becomes the name alone.

    Raises PluginError for a link to what is not in the repository.
    """
    sources = {target: source for source, target in OUTSIDE.items()}
    source = sources.get(page.file.src_uri, f"docs/{page.file.src_uri}")

    def placed(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), link[1]))
        target = _on_site(path)
        if files.get_file_from_path(target):
            here = posixpath.dirname(page.file.src_uri) or "."
            return posixpath.relpath(target, here) + (link[2] or "")
        if not (ROOT / path).exists():
            raise PluginError(f"{source} links to {link[1]}, which is not there.")
        return _NOWHERE

    moved = _LINK.sub(placed, markdown)
    return re.sub(rf"\[([^\]]+)\]\({_NOWHERE}\)", r"\1", moved)


_NOWHERE = "no-page"


def _on_site(path: str) -> str:
    """Path on the site of a path in the repository."""
    if path in OUTSIDE:
        return OUTSIDE[path]
    if (ROOT / path / "README.md").exists():
        return OUTSIDE.get(f"{path}/README.md", path)
    if path == "docs/results":
        return "benchmarks.md"
    return path.removeprefix("docs/")
