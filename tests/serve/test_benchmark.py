"""The benchmark of the server, in miniature."""

from __future__ import annotations

import importlib
import json
import runpy
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).resolve().parents[2] / "benchmarks" / "serving.py"


def test_the_benchmark_in_miniature(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(PROGRAM.parent))
    options = ["--tiny", "--weights", "int4", "--methods", "full", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", [str(PROGRAM), *options])
    runpy.run_path(str(PROGRAM), run_name="__main__")
    results = json.loads((tmp_path / "serving.json").read_text())["results"]
    facts = [(row["weights"], row["method"], row["clients"]) for row in results]
    assert facts == [("int4", "full", 1), ("int4", "full", 2)]
    assert all(row["answer_tokens"] == 16 and row["gain"] > 0 for row in results)
    text = (tmp_path / "serving.md").read_text()
    assert "4 prompts of" in text
    assert "Measured on" in text


@pytest.mark.parametrize(("arguments", "said"), [(["--tiny"], "an --out of its own"), ([], "name a model")])
def test_senseless_options_are_refused(arguments, said, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(PROGRAM.parent))
    monkeypatch.setattr(sys, "argv", [str(PROGRAM), *arguments])
    with pytest.raises(SystemExit):
        importlib.import_module("serving").main()
    assert said in capsys.readouterr().err
