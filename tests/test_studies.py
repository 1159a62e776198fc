"""Studies of pretrained models: the runs that their pages are made of."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import product
from math import exp, expm1
from pathlib import Path

import pytest

from support.runs import ABOUT, ROW
from winnow.estimate.journal import Journal
from winnow.runs.folder import About, RunError
from winnow.runs.rows import Row
from winnow.store import LayerShape

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks" / "frontier"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks" / "pretrained"))

import long_context
from evaluated import MODEL, Part, Study, records, studies_of
from perplexity import bits_per_number, paired

VERSIONS = {"torch": "2.11.0", "transformers": "5.24.0", "winnow": "0.1.0"}
PARTS = tuple(Part(name, name, (), ("full",), "10%") for name in ("done", "begun", "later"))


def write_run(folder: Path, about: About, rows: Sequence[Row]) -> None:
    """A run as `winnow eval` leaves it."""
    folder.mkdir()
    (folder / "run.json").write_text(json.dumps(asdict(about)))
    journal = Journal.open(folder / "cells.jsonl", {"run": "x"})
    for row in rows:
        journal.append(asdict(row))
    journal.close()


def test_pages_are_made_of_runs_that_have_rows(tmp_path: Path) -> None:
    """A run that was stopped before its first row has a description and a journal, and nothing to tell."""
    study = Study("A model", "model", tmp_path)
    write_run(tmp_path / "done", ABOUT, [ROW])
    write_run(tmp_path / "begun", ABOUT, [])
    runs = study.runs(PARTS)
    assert list(runs) == [PARTS[0]]
    assert study.run(PARTS[1]) is study.run(PARTS[2]) is None
    assert runs[PARTS[0]].rows == (ROW,)
    assert [each["part"] for each in records(study, PARTS)] == ["done"]


def test_a_page_of_long_prompts_names_the_gpu_and_divides_by_task(tmp_path: Path) -> None:
    study = Study("A model", "model", tmp_path)
    about = replace(ABOUT, environment=ABOUT.environment | {"device": "NVIDIA H200"} | VERSIONS)
    cells = product(("full", "snapkv @ 5%"), ("cwe", "vt"))
    rows = [replace(ROW, cell=f"{method} {task}", method=method, task=task) for method, task in cells]
    write_run(tmp_path / long_context.RULER.name, about, rows)
    text, found = long_context.page([study, Study("Another", "other", tmp_path / "other")])
    assert "Measured on an NVIDIA H200, torch" in text
    assert "`cwe`" in text.split("At 5%, by task:")[1]
    assert "Another" not in text
    assert [each["method"] for each in found] == ["full", "snapkv @ 5%"]


def test_models_have_folders_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names on the hub are whole; a checkpoint is told from one of the same name, wherever the command is given."""
    hub = [f"meta-llama/{name}" for name in ("Llama-3.2-1B", "Llama-3.2-3B", "Llama-3.1-8B-Instruct")]
    assert [study.folder.name for study in studies_of(hub, tmp_path)] == [each.replace("/", "--") for each in hub]
    assert [study.title for study in studies_of(hub, tmp_path)] == hub
    paths = [tmp_path / name for name in ("a/checkpoint", "b/checkpoint", "Toy-3.2-1B", "Toy-3.2-1B.gguf")]
    for path in paths:
        path.mkdir(parents=True)
    folders = [Study.of(f"A model={path}", tmp_path).folder for path in paths]
    assert len(set(folders)) == len(folders)
    short = ["checkpoint", "checkpoint", "Toy-3.2-1B", "Toy-3.2-1B"]
    assert [folder.name.rpartition("-")[0] for folder in folders] == short
    assert [Study.of(str(path), tmp_path).title for path in paths] == short
    monkeypatch.chdir(tmp_path / "a")
    assert {Study.of(name, tmp_path).folder for name in ("checkpoint", "./checkpoint", "../a/checkpoint/")} == {
        folders[0]
    }


def test_a_page_tells_its_models_apart(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="2 models have the title checkpoint: give each another one, as TITLE=MODEL"):
        studies_of(["/a/checkpoint", "/b/checkpoint"], tmp_path)
    assert len(studies_of(["/a/checkpoint", "B=/b/checkpoint"], tmp_path)) == 2


def test_a_folder_of_another_model_is_refused(tmp_path: Path) -> None:
    """One without a name, too, unless it is empty: an earlier version's may be of any model."""
    study = Study("A model", "some/model", tmp_path / "findings")
    study.folder.mkdir()
    study.begin()
    study.begin()
    with pytest.raises(RunError, match="findings about some/model, not other/model: give another --runs"):
        study._replace(model="other/model").begin()
    (study.folder / "kept.jsonl").touch()
    (study.folder / MODEL).unlink()
    with pytest.raises(RunError, match=r"about which model.*where they are about some/model, write that name into"):
        study.check()


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
