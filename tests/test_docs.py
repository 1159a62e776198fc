"""The documentation's code runs as printed, its links lead somewhere, and the files that it names exist."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.families import EVERY

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "winnow"
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "benchmarks/README.md")),
    *sorted((ROOT / "docs").glob("**/*.md")),
]

# Only the standard finders, so that the copy below is found before an editable installation.
PREPARE = """
import sys
sys.meta_path[:] = [finder for finder in sys.meta_path if finder.__module__.startswith("_frozen_importlib")]
sys.path[:0] = [{source!r}, {tests!r}]
import winnow
from support.families import build, prompt
model = build("llama")
model.set_attn_implementation("winnow")
input_ids = prompt(length=300)
"""
CHECK = """
slots = cache.stats().slots
assert sum(map(sum, slots)) == 128 * sum(map(len, slots)), slots
assert all(head[:2].tolist() == [0, 1] for layer in range(len(slots)) for head in cache.kept(layer))
assert output.shape[1] == 308
import winnow.commands.write_catalog
winnow.commands.write_catalog.write()
from winnow.cli import main
sys.exit(main(["methods", "valuenorm"]))
"""


def python_blocks(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL)


def test_the_new_method_of_the_guide_works_as_printed(tmp_path):
    scorer, registration, usage = python_blocks(ROOT / "docs" / "adding-a-method.md")
    assert len(scorer.strip().splitlines()) <= 30
    copy = tmp_path / "winnow"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("bundled", "__pycache__"))
    (copy / "bundled").symlink_to(PACKAGE / "bundled")
    (copy / "score" / "value_norm.py").write_text(scorer)
    registry = copy / "composition" / "registry.py"
    statement, record = registration.strip().split("\n\n")
    text, added = re.subn(
        r"^PRESETS\b.*= \(\n", rf"{statement}\n\n\g<0>    {record},\n", registry.read_text(), flags=re.M
    )
    assert added == 1
    registry.write_text(text)
    script = PREPARE.format(source=str(tmp_path), tests=str(ROOT / "tests")) + usage + CHECK
    run = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert re.search(r"sinks +4 +first tokens that are always kept", run.stdout)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_local_links_and_named_files_exist(page):
    text = page.read_text()
    links = [link for link in re.findall(r"\]\(([^)]+)\)", text) if "://" not in link]
    missing = [link for link in links if not leads_somewhere(page, link)]
    named = re.findall(r"`((?:src|tests|benchmarks|docs|examples|native|training)/[\w./-]+\.\w+)`", text)
    missing += [name for name in named if not (ROOT / name).exists() and "value_norm" not in name]
    packages = "|".join(sorted(path.name for path in PACKAGE.iterdir() if path.is_dir()))
    inside = re.findall(rf"`((?:{packages})/[\w/]+\.py)`", text)
    missing += [name for name in inside if not (PACKAGE / name).exists() and not (ROOT / name).exists()]
    assert not missing


def leads_somewhere(page: Path, link: str) -> bool:
    """True if the linked file exists and has the heading that the link names."""
    name, _, heading = link.partition("#")
    target = page.parent / name if name else page
    if not target.exists():
        return False
    titles = re.findall(r"^#+ (.+)$", target.read_text(), flags=re.MULTILINE) if heading else []
    return not heading or heading in {re.sub(r"[^\w\- ]", "", title).lower().replace(" ", "-") for title in titles}


def test_pages_count_the_families_that_are_tested():
    texts = {page: page.read_text(encoding="utf-8") for page in PAGES}
    told = {
        (page.name, int(count)) for page, text in texts.items() for count in re.findall(r"(\d+) model families", text)
    }
    assert {name for name, _ in told} >= {"README.md", "contexts.md", "methods.md"}
    assert {count for _, count in told} == {len(EVERY)}
