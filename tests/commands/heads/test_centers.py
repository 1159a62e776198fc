"""`winnow heads centers`: measured on a text, and used by name."""

from __future__ import annotations

from pathlib import Path

import winnow
from support.text import flat
from winnow.heads import QueryCenters


def test_centers_of_the_bundled_model(winnow_heads, folder: Path) -> None:
    (folder / "text.txt").write_text("Rita talked with Karl at the school. " * 12, encoding="utf-8")
    code, out, err = winnow_heads("centers", "text.txt", "--tokens", "64", "-o", "c.safetensors")
    assert code == 0, err
    centers = QueryCenters.load("c.safetensors")
    layers, heads, _ = centers.mean.shape
    assert centers.tokens == 60
    # Files are passed on, and where a model lies is its owner's affair.
    assert centers.model == "winnow-bundled"
    assert flat(out).endswith(f"c.safetensors {layers} layers of {heads} query heads, 60 queries of each")
    method = winnow.method("triattention(centers=c.safetensors)", 64)
    assert method.scorer.centers == centers
    assert method.name == "triattention(centers=c.safetensors)"


def test_misuse(winnow_heads, folder: Path) -> None:
    (folder / "text.txt").write_text("Rita", encoding="utf-8")
    code, _, err = winnow_heads("centers", "text.txt", "-o", "c.safetensors")
    assert code == 1
    assert "no queries to measure" in flat(err)
    (folder / "c.safetensors").write_text("taken", encoding="utf-8")
    code, _, err = winnow_heads("centers", "text.txt", "-o", "c.safetensors")
    assert code in (1, 2)
    assert "--force" in flat(err)
