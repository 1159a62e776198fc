"""The documentation's code runs as printed, and its links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import winnow
from support.families import build, prompt
from winnow.allocate import Ada
from winnow.budget import Budget
from winnow.composition.method import Method
from winnow.store import Dense

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def python_blocks(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL)


def test_the_new_method_of_the_guide_works():
    source = python_blocks(ROOT / "docs" / "adding-a-method.md")[0]
    assert len(source.strip().splitlines()) <= 30
    namespace: dict = {"__name__": "value_norm"}
    exec(compile(source, "value_norm.py", "exec", dont_inherit=True), namespace)
    scorer = namespace["ValueNorm"]()
    model = build("llama")
    model.set_attn_implementation("winnow")
    method = Method("valuenorm+ada", scorer, Ada(), Dense(), Budget.parse(10))
    cache = winnow.CompressedCache(model, method)
    with torch.no_grad():
        model(prompt(length=60), past_key_values=cache)
    assert all(head[:4].tolist() == [0, 1, 2, 3] for head in cache.kept(0))
    assert sum(map(sum, cache.stats().slots)) == 10 * 2 * 3


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_local_links_and_named_files_exist(page):
    text = page.read_text()
    links = [link.split("#")[0] for link in re.findall(r"\]\(([^)]+)\)", text) if "://" not in link]
    missing = [link for link in links if link and not (page.parent / link).exists()]
    named = re.findall(r"`((?:src|tests|benchmarks|docs|examples|native|training)/[\w./-]+\.\w+)`", text)
    missing += [name for name in named if not (ROOT / name).exists() and "value_norm" not in name]
    assert not missing
