"""Studies of pretrained models: the runs that their pages are made of."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, replace
from math import exp, expm1
from pathlib import Path

import pytest

from support.runs import ABOUT, ROW
from winnow.estimate.journal import Journal
from winnow.store import LayerShape

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks" / "frontier"))

from evaluated import Part, Study, records
from perplexity import bits_per_number, paired

PARTS = tuple(Part(name, name, (), ("full",), "10%") for name in ("done", "begun", "later"))


def test_pages_are_made_of_runs_that_have_rows(tmp_path: Path) -> None:
    """A run that was stopped before its first row has a description and a journal, and nothing to tell."""
    study = Study("A model", "model", tmp_path)
    for name, rows in (("done", [ROW]), ("begun", [])):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text(json.dumps(asdict(ABOUT)))
        journal = Journal.open(tmp_path / name / "cells.jsonl", {"run": "x"})
        for row in rows:
            journal.append(asdict(row))
        journal.close()
    runs = study.runs(PARTS)
    assert list(runs) == [PARTS[0]]
    assert study.run(PARTS[1]) is study.run(PARTS[2]) is None
    assert runs[PARTS[0]].rows == (ROW,)
    assert [each["part"] for each in records(study, PARTS)] == ["done"]


SHAPES = [LayerShape(layer, 2, 128, 128, 2, 0) for layer in range(3)]


def test_bits_per_number_count_scales_positions_and_statistics() -> None:
    """A slot of 4 bits: 128 bytes, two scales and a position; a head: means and spreads; a block: three offsets."""
    slots = 2 * 1024 * (128 + 2 * 2 + 4)
    once = 2 * 2 * 128 * 2 + 3 * 8
    assert bits_per_number("full+bits(4)", SHAPES, 1024) == pytest.approx(8 * (slots + once) / (2 * 1024 * 256))


def test_a_method_is_paired_with_the_full_cache_text_by_text() -> None:
    """Texts that only one of the two has are left out, and intervals are those of differences."""
    rows = [
        replace(ROW, method=method, content=content, scores={"nll": nll + worse, "kl": worse, "agreement": 1.0})
        for method, worse in (("full", 0.0), ("full+bits(high=8)", 0.01))
        for content, nll in (("a", 1.0), ("b", 5.0), ("c" if worse else "d", 9.0))
    ]
    (found,) = paired(rows, SHAPES)
    assert (found.method, found.texts) == ("full+bits(high=8)", 2)
    assert found.full == pytest.approx(exp(3.0))
    assert found.change == pytest.approx([expm1(0.01)] * 3)
    assert found.kl == pytest.approx([0.01] * 3)
