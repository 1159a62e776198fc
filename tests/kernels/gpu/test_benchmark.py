"""The benchmark of the GPU kernels in miniature, so that its first run on a GPU does not end with a slip of the pen."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path

import pytest
import torch

from support.gpu import DEVICE

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch):
    """The program as a module."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import gpu

    return gpu


def test_it_measures_writes_its_tables_and_does_nothing_twice(gpu, tmp_path: Path, capsys) -> None:
    options = argparse.Namespace(tiny=True, minutes=8, journal=tmp_path / "gpu.jsonl", out=tmp_path)
    gpu.run(DEVICE, options)
    done = capsys.readouterr()
    (figures,) = tmp_path.glob("*.json")  # named by the GPU, where there is one
    records = json.loads(figures.read_text(encoding="utf-8"))["results"]
    assert {record["kind"] for record in records} == {"ceiling", "kernel", "model"}
    assert {record["name"]: record.get("failed", "skipped") for record in records
            if record.get("failed") or "skipped" in record} == {}  # fmt: skip
    assert all(each in done.out for each in ("aperturekv @ 2%", "bits(8)", "sdpa / ours"))
    gpu.run(DEVICE, options)
    again = capsys.readouterr()
    assert again.err == ""
    assert again.out == done.out


def test_the_page_is_of_its_figures(gpu, tmp_path: Path) -> None:
    from gpu_tables import rewrite

    results = BENCHMARKS.parent / "docs" / "results"
    measured = sorted(path.name for path in results.glob("gpu-*.json"))
    assert measured
    for name in measured:
        shutil.copy(results / name, tmp_path)
    rewrite(tmp_path)
    written = sorted(tmp_path.iterdir())
    assert [path.name for path in written if path.suffix == ".json"] == measured
    for path in written:
        assert path.read_text(encoding="utf-8") == (results / path.name).read_text(encoding="utf-8")


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
def test_without_a_gpu_it_says_so(gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu.py"])
    with pytest.raises(SystemExit, match="No GPU is here, so nothing can be timed; --tiny tries"):
        gpu.main()
